"""``vllm.model_executor.model_loader.utils``, and an engine's model as its workers see it.

Real counterpart: ``model_runner.model`` of a worker. Its parameters have shapes; weights that come
are copied into them, at the pace of the GPU's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from raysim.rayapi.shapes.here import worker_here


class EngineModel:
    """Of one worker.

    Parameters
    ----------
    source
        Its name or folder.
    ranks
        That each have a part of it.
    """

    def __init__(self, source: str, ranks: int) -> None:
        self._source, self._ranks = source, ranks
        self._whole: Any = None
        self.loaded_bytes = 0
        """Of weights that have been sent to it."""

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> set[str]:
        """Copied into its parameters; of a part on each rank."""
        names, size_bytes = set[str](), 0
        for name, weight in weights:
            names.add(name)
            size_bytes += weight.nbytes
        self.loaded_bytes += size_bytes
        worker: Any = worker_here()
        node = worker.run.session.env.nodes[worker.places[0][0]].spec
        seconds = 2 * size_bytes / self._ranks / node.gpu.memory_bytes_per_s
        worker.weights_move(seconds)
        return names

    def named_parameters(self, *_args: Any, **_kwargs: Any) -> Iterator[tuple[str, Any]]:
        """By transformers' names, whole."""
        if self._whole is None:
            from transformers import AutoConfig, AutoModelForCausalLM

            config = AutoConfig.from_pretrained(self._source)
            with torch.device("meta"):
                self._whole = AutoModelForCausalLM.from_config(config)
        yield from self._whole.named_parameters()

    def parameters(self) -> Iterator[Any]:
        """Likewise."""
        yield from (p for _, p in self.named_parameters())


def process_weights_after_loading(*_args: Any, **_kwargs: Any) -> None:
    """Nothing is laid out anew."""
