"""Checkpoints in training workers: files of shapes, which stand for bytes.

Real counterparts: ``torch/serialization.py``, ``torch/distributed/checkpoint`` of torch 2.x: of the
latter every rank writes its share. Not modelled: ``async_save`` (refused), what a plan of writing
takes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.optimizer
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils._pytree import tree_leaves, tree_map_only

from raysim.rayapi.checkpoint import STANDS_FOR
from raysim.rayapi.fibers import HUB
from raysim.rayapi.shapes.cuda import refuse
from raysim.rayapi.shapes.devices import on_gpu
from raysim.rayapi.shapes.here import steps_here
from raysim.rayapi.shapes.known import META, to_device
from raysim.rayapi.shapes.mode import no_value
from raysim.rayapi.shapes.numbers import Unknown
from raysim.tracing.operators import tensors
from raysim.tracing.storages import key_of, local_part

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)


def install(r: Replaced) -> None:
    """Of workers with GPUs; whoever reads what they have written finds tensors without values."""
    r.around(torch, "save", _save)
    r.around(torch, "load", _load, lambda: HUB.current)
    r.call(dcp, "save", _save_shares)
    r.call(dcp, "load", _load_shares)
    r.call(dcp.optimizer, "load_sharded_optimizer_state_dict", _load_optimizer)
    r.call(dcp, "async_save", refuse("torch.distributed.checkpoint.async_save", "dcp.save"))


def _save(real: Any, steps: Steps, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """``torch.save``: shapes, and a first line that says what they stand for."""
    if any(t.is_meta for t in tensors(obj)):
        write(steps, obj, f)
    else:
        if any(isinstance(leaf, Unknown) for leaf in tree_leaves(obj)):
            obj = tree_map_only(Unknown, float, obj)  # whoever reads it knows no such class
        real(obj, f, *args, **kwargs)


def write(steps: Steps, obj: Any, f: Any) -> None:
    """Its tensors' shapes; their bytes are paid for."""
    steps.synchronize()
    stands_bytes = _size_bytes(obj)
    text = _text(obj, stands_bytes)
    if hasattr(f, "write"):
        f.write(text)
    else:
        Path(f).write_bytes(text)
        steps.worker.write_file(stands_bytes)


def _size_bytes(obj: Any, *, all_parts: bool = False) -> int:
    """Of its tensors, or of one that is spread the part here; what shares a storage is there once.

    ``all_parts``: of those of all ranks, which write each of them once.
    """
    meta = [t for t in tensors(obj) if t.is_meta]
    storages = {key_of(t): (t if all_parts else local_part(t)).nbytes for t in meta}
    return sum(storages.values()) + sum(t.nbytes for t in tensors(obj) if not t.is_meta)


def _text(obj: Any, stands_bytes: int) -> bytes:
    plain = tree_map_only(torch.Tensor, _Shape.of, obj)
    return STANDS_FOR + str(stands_bytes).encode() + b"\n" + pickle.dumps(plain)


def _load(real: Any, _process: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.load`` of what ``torch.save`` wrote here."""
    found = opened(f)
    if found is not None:
        return found
    if steps_here() is None:
        return real(f, *args, **kwargs)
    return _load_real(real, f, *args, **kwargs)


def _load_real(real: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """A file of this machine, which has values: the shapes of those that a worker knows not."""
    with _C.DisableTorchFunction():
        found = real(f, "cpu", *args, **kwargs)
    moves = map_location is not None and on_gpu(map_location)

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        if moves:
            return tensor.to(map_location)
        return to_device(tensor) if tensor.is_floating_point() else tensor

    return tree_map_only(torch.Tensor, placed, found)


def _save_shares(
    steps: Steps, state_dict: Any, *, checkpoint_id: Any = None, storage_writer: Any = None,
    **_more: Any,
) -> None:  # fmt: skip
    """``torch.distributed.checkpoint.save``."""
    steps.synchronize()
    context = steps.worker.expect_group().context
    folder = Path(checkpoint_id or storage_writer.path)
    state_dict = {
        key: value.state_dict() if isinstance(value, Stateful) else value
        for key, value in state_dict.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    share_bytes = _size_bytes(state_dict, all_parts=True) // context.world_size
    (folder / f"__{context.rank}_0.distcp").write_bytes(_text(None, share_bytes))
    if context.rank == 0:
        (folder / _METADATA).write_bytes(_text(state_dict, 0))
    steps.worker.write_file(share_bytes)
    steps.worker.meet()


def _load_shares(
    steps: Steps, state_dict: Any, *, checkpoint_id: Any = None, storage_reader: Any = None,
    **_more: Any,
) -> None:  # fmt: skip
    """``torch.distributed.checkpoint.load``, in place: tensors have the shapes that they had."""
    context = steps.worker.expect_group().context
    folder = Path(checkpoint_id or storage_reader.path)
    found = read((folder / _METADATA).read_bytes())
    wanted = {key: found[key] for key in state_dict if key in found}
    steps.worker.read_bytes(_size_bytes(wanted, all_parts=True) // context.world_size)
    for key, value in wanted.items():
        if isinstance(state_dict[key], Stateful):
            state_dict[key].load_state_dict(_into(state_dict[key].state_dict(), value))
        else:
            state_dict[key] = _into(state_dict[key], value)
    steps.worker.meet()


def _into(own: Any, found: Any) -> Any:
    """What was found, but for tensors: those that are there have its shapes, and places."""
    if isinstance(own, Mapping) and isinstance(found, Mapping):
        return {key: _into(value, found.get(key, value)) for key, value in own.items()}
    return own if isinstance(own, torch.Tensor) else found


def _load_optimizer(
    steps: Steps,
    model_state_dict: Any,
    optimizer_key: str,
    storage_reader: Any,
    _planner: Any = None,
) -> Any:
    """``torch.distributed.checkpoint.optimizer.load_sharded_optimizer_state_dict``."""
    del model_state_dict
    found: dict[str, Any] = {optimizer_key: None}
    _load_shares(steps, found, storage_reader=storage_reader)
    return found


_METADATA = ".metadata"


def opened(f: Any) -> Any:
    """What a file of shapes was made of; None of any other, of which only the head is read."""
    if not hasattr(f, "read"):
        with Path(f).open("rb") as file:
            return opened(file)
    at = f.tell()
    ours = f.read(len(STANDS_FOR)) == STANDS_FOR
    f.seek(at)
    if not ours:
        return None
    text = f.read()
    f.seek(at)
    return read(text)


def read(text: bytes) -> Any:
    """What such a file was made of."""
    with _C.DisableTorchFunction():  # values stay what they are
        found = pickle.load(io.BytesIO(text.partition(b"\n")[2]))  # noqa: S301  (our own bytes)
    return tree_map_only(_Shape, _Shape.tensor, found)


class _Shape:
    """A tensor in a file: with its values, or only its shape."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, values: Any) -> None:
        self.shape, self.dtype, self.values = shape, dtype, values

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Shape:
        """For a file."""
        values = None if tensor.is_meta else tensor.detach()
        return cls(tuple(tensor.shape), tensor.dtype, values)

    def tensor(self) -> torch.Tensor:
        """From a file."""
        if self.values is not None:
            return self.values  # type: ignore[no-any-return]
        if steps_here() is not None:
            return torch.empty(self.shape, dtype=self.dtype, device=META)
        return torch.full((), no_value(self.dtype), dtype=self.dtype).expand(self.shape)
