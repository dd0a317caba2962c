"""Memory of a training step without a device: torch's own trackers on fake tensors.

``MemTracker`` follows an unsharded model, ``FSDPMemTracker`` one under ``fully_shard`` on rank 0 of
a fake process group of any size; neither allocates anything. What they say at the end of forward,
backward and step, and at the peak, becomes ``torch_memory.json``: bytes by torch's categories. (A
table would keep six digits of a number that is exact.)
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from raysim.errors import CalibrationError
from raysim.measure.machine import describe
from raysim.measure.session import Session, needs
from raysim.units import format_bytes

NEEDED = {"name", "worlds", "dtype", "micro_batch", "seq", "model"}
CASE: dict[str, Any] = {
    "name": "llama", "worlds": [1, 8], "dtype": "float32", "micro_batch": 2, "seq": 128,
    "model": {
        "model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 704,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
}  # fmt: skip
"""What is measured unless a file of cases is given."""
FILE = "torch_memory.json"
Bytes = dict[str, dict[str, int]]
"""When, and category, to bytes."""


def tracked(case: Mapping[str, Any], world: int) -> Bytes:
    """Bytes of rank 0 by when (``forward``, ``backward``, ``step``, ``peak``) and category.

    ``world`` 1 is the model unsharded; otherwise every decoder layer and the root are under
    ``fully_shard``. Optimizer: ``AdamW(foreach=True)``. Gradients are cleared after the step.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    from raysim.measure.training_fsdp import fully_sharded
    from raysim.measure.training_models import transformer

    with _fake_group(world) as mesh, _as_if_real(), FakeTensorMode():
        model: Any = transformer(case["model"] | {"dtype": case["dtype"]})
        if world > 1:
            fully_sharded(model, case.get("fsdp", {}), mesh)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        ids = torch.randint(case["model"]["vocab_size"], (case["micro_batch"], case["seq"]))
        # Makes the states, and lets DTensor work out its shardings: on tensors of the whole shape,
        # which a tracker would count.
        _step(model, optimizer, ids, lambda _: None)
        tracker: Any = FSDPMemTracker(model, optimizer) if world > 1 else MemTracker()
        if world == 1:
            tracker.track_external(model, optimizer)
        found: Bytes = {}
        with tracker:
            _step(model, optimizer, ids, partial(_note, found, tracker))
            found["peak"] = _total(tracker, "peak")
    del tracker, optimizer, model
    gc.collect()
    return found


def _note(found: Bytes, tracker: Any, when: str) -> None:
    found[when] = _total(tracker, "current")


def _step(model: Any, optimizer: Any, ids: Any, told: Callable[[str], None]) -> None:
    out = model(input_ids=ids, labels=ids)  # held while backward runs, and with it the logits
    told("forward")
    out.loss.backward()
    told("backward")
    del out
    optimizer.step()
    optimizer.zero_grad()
    told("step")


def _total(tracker: Any, kind: str) -> dict[str, int]:
    """One device, all categories that hold anything."""
    (by_category,) = tracker.get_tracker_snapshot(kind).values()
    names = {getattr(key, "value", key): size for key, size in by_category.items()}
    return {name: size for name, size in names.items() if size}


@contextmanager
def _as_if_real() -> Iterator[None]:
    """transformers cannot read from fake positions that no sequences are packed; a mask results."""
    with patch("transformers.masking_utils.find_packed_sequence_indices", lambda *_: None):
        yield


@contextmanager
def _fake_group(world: int) -> Iterator[Any]:
    """The mesh of rank 0 in a process group whose collectives do nothing."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (world,))
    finally:
        dist.destroy_process_group()


def measure(session: Session) -> None:
    """Fill ``torch_memory.json``.

    ``session.cases`` names a JSON list of cases: ``name``, ``model`` (a Hugging Face config),
    ``seq``, ``micro_batch``, ``dtype`` of the weights, and ``worlds``.

    Raises
    ------
    CalibrationError
        A package is absent, or the file of cases cannot be read.
    """
    for package in ("torch", "transformers"):
        needs(package, "memory")
    path = session.folder / FILE
    cases, found = _read(session), _found(path)
    for case in cases:
        records = found.setdefault(case["name"], {"case": case, "bytes": {}})["bytes"]
        for world in case["worlds"]:
            if str(world) in records:
                session.kept += 1
            elif session.budget.left_s() <= 0:
                session.left += 1
            else:
                records[str(world)] = tracked(case, world)
                peak = format_bytes(records[str(world)]["peak"]["Total"])
                session.say(f"memory {case['name']}, {world} ranks: peak {peak}")
                session.measured += 1
                _save(path, session.command, found)


def _found(path: Path) -> dict[str, Any]:
    """What an earlier run recorded, by case."""
    if not path.exists():
        return {}
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return known


def _save(path: Path, command: str, found: Mapping[str, Any]) -> None:
    head = {
        "what": "torch's MemTracker and FSDPMemTracker on fake tensors: bytes of rank 0",
        "command": command, "date": date.today().isoformat(),
        "versions": {k: v for k, v in describe().versions.items() if k in ("python", "torch")},
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**head, "cases": found}, indent=1) + "\n", encoding="utf-8")


def _read(session: Session) -> list[dict[str, Any]]:
    if session.cases is None:
        return [CASE]
    try:
        cases: list[dict[str, Any]] = json.loads(session.cases.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{session.cases}: {error}") from None
    for case in cases:
        if missing := NEEDED - set(case):
            name = case.get("name", "a case")
            raise CalibrationError(f"{session.cases}: {name} lacks {', '.join(sorted(missing))}")
    return cases
