"""What is changed of transformers, accelerate, diffusers and what they write with.

Real counterparts: the packages, installed on the workers. All else of them is their own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from raysim.rayapi.huggingface import accelerate, diffusers, files, pretrained
from raysim.rayapi.later import changed

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

_CHANGES = {
    "transformers.modeling_utils": pretrained.install,
    "transformers.training_args": accelerate.knows_tf32,
    "accelerate.state": accelerate.install,
    "accelerate.utils.fsdp_utils": accelerate.no_loading,
    "accelerate.utils.modeling": files.own_storages,
    "accelerate.utils.other": files.own_storages,
    "diffusers.models.modeling_utils": diffusers.install,
    "safetensors.torch": files.install,
}


@contextmanager
def huggingface_of_workers(r: Replaced) -> Iterator[None]:
    """Training workers find theirs from here on."""
    with changed({name: partial(change, r) for name, change in _CHANGES.items()}):
        try:
            yield
        finally:
            accelerate.ask_again()
            pretrained.forget()
