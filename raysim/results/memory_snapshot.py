"""A rank's memory as ``torch.cuda.memory._dump_snapshot`` writes it, for PyTorch's memory_viz page.

Real counterpart: ``torch/csrc/cuda/memory_snapshot.cpp``, ``torch/cuda/_memory_viz.py`` and
``torch/utils/viz/MemoryViz.js`` of torch 2.13. Drop the file on the page that torch's documentation
names, or read it with ``python -m torch.cuda._memory_viz stats memory_snapshot.pickle``.

Differences: frames are modules of the model, the pass and the step instead of lines of Python, so
their file is the kind of frame; every event names the category of its tensor, by which the page
colours; device memory of context and NCCL is in no snapshot, here as there.
"""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.errors import ScenarioError

if TYPE_CHECKING:
    from raysim.training.allocator.blocks import Block
    from raysim.training.memory.history import Cause, Played, RankHistory

PROTOCOL = 4
"""The last that the page's own reader knows."""
BASE_ADDRESS = 0x7F00_0000_0000
"""Where the driver's addresses begin; emulated ones begin at zero."""
UNKNOWN = "unknown"
"""A category that the page asks for: as of torch 2.13 it fails to add it where it is missing."""

Frame = dict[str, Any]


def fullest(histories: Sequence[RankHistory]) -> RankHistory:
    """The rank with the highest peak.

    Raises
    ------
    ScenarioError
        There is none, or none with torch's CUDA allocator.
    """
    with_allocator = [history for history in histories if history.has_allocator]
    if not with_allocator:
        raise ScenarioError(
            "there is no memory snapshot: it shows torch's CUDA allocator, of training jobs on "
            "GPUs whose run was recorded"
        )
    return max(with_allocator, key=lambda history: history.memory.peak_bytes)


def of_rank(histories: Sequence[RankHistory], rank: int | None) -> RankHistory:
    """The history of a rank; None: the fullest.

    Raises
    ------
    ScenarioError
        That rank was not simulated.
    """
    default = fullest(histories)
    if rank is None:
        return default
    by_rank = {history.memory.rank: history for history in histories}
    if rank not in by_rank:
        known = ", ".join(map(str, sorted(by_rank)))
        raise ScenarioError(f"rank {rank} was not simulated; these were: {known}")
    return by_rank[rank]


def write(history: RankHistory, path: Path) -> Path:
    """Write the snapshot of a rank; the same bytes for the same run."""
    path.write_bytes(pickle.dumps(snapshot(history), protocol=PROTOCOL))
    return path


def snapshot(history: RankHistory) -> dict[str, Any]:
    """What ``torch.cuda.memory._snapshot()`` would answer on this rank at the end."""
    device = int(history.memory.track[-1].rpartition("-")[2])
    played = history.play()
    said = _Frames(history)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(device + 1)]
    traces[device] = list(_events(history, played, said))
    return {
        "segments": list(_segments(played, said, device)),
        "device_traces": traces,
        "allocator_settings": _settings(history),
        "external_annotations": [],
    }


def _settings(history: RankHistory) -> dict[str, Any]:
    config = history.config
    if config is None:
        return {"PYTORCH_CUDA_ALLOC_CONF": ""}
    return {
        "max_split_size": -1
        if config.max_split_size_mb is None
        else config.max_split_size_mb << 20,
        "garbage_collection_threshold": config.garbage_collection_threshold,
        "expandable_segments": config.expandable_segments,
        "roundup_power2_divisions": dict(enumerate(config.roundup_power2_divisions)),
    }


class _Frames:
    """The stack of each change, innermost first as torch's; equal ones are one object."""

    def __init__(self, history: RankHistory) -> None:
        self.history = history
        self.stacks: dict[Cause, list[Frame]] = {}
        self.frames: dict[tuple[str, int, str], Frame] = {}
        self.of_event: dict[int, tuple[list[Frame], str]] = {}

    def __call__(self, event: int) -> tuple[list[Frame], str]:
        """Stack and category."""
        known = self.of_event.get(event)
        if known is None:
            cause = self.history.cause(event)
            stack = self.stacks.get(cause)
            if stack is None:
                stack = self.stacks[cause] = [self._frame(*f) for f in _stack(cause)]
            known = self.of_event[event] = stack, cause.category
        return known

    def _frame(self, filename: str, line: int, name: str) -> Frame:
        key = filename, line, name
        return self.frames.setdefault(key, {"filename": filename, "line": line, "name": name})


def _stack(cause: Cause) -> Iterator[tuple[str, int, str]]:
    """File, line and name of each frame: tensor, modules from the inside out, pass, step."""
    yield cause.category, 0, cause.label or cause.category
    for module in modules(cause.op):
        yield "module", 0, module
    if cause.micro_batch >= 0:
        yield "micro-batch", cause.micro_batch, cause.phase
    elif cause.op:
        yield "step", cause.step, cause.phase
    if cause.op:
        yield "training", cause.step, "step"
    else:
        yield "training", 0, cause.phase


def modules(op: str) -> Iterator[str]:
    """``a.b.c``, ``a.b``, ``a``; what stands before the path stays with the first."""
    if not op:
        return
    yield op
    path = op.rpartition(" ")[2]
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _events(history: RankHistory, played: Played, said: _Frames) -> Iterator[dict[str, Any]]:
    numbers = _Streams()
    times = history.times_ns(played.entries)
    for entry, t_ns in zip(played.entries, times, strict=True):
        frames, category = said(entry.event)
        where = {"device_free": entry.address}
        if entry.action != "oom":
            where = {"addr": BASE_ADDRESS + entry.address}
        segment = entry.action.startswith("segment")
        yield {
            "action": entry.action, **where, "size": entry.size_bytes,
            "stream": numbers[entry.stream], "time_us": t_ns // 1000, "compile_context": "N/A",
            "user_metadata": "", "frames": frames, "category": UNKNOWN if segment else category,
        }  # fmt: skip


class _Streams(dict[Hashable, int]):
    """Torch's handle of each stream: 0 is the default one, that of kernels and cuBLAS."""

    def __init__(self) -> None:
        super().__init__({0: 0, "compute": 0})

    def __missing__(self, stream: Hashable) -> int:
        self[stream] = number = len(self) - 1
        return number


def _segments(played: Played, said: _Frames, device: int) -> Iterator[dict[str, Any]]:
    numbers = _Streams()
    for entry in played.entries:
        numbers[entry.stream]
    for segment in played.segments:
        blocks = list(_blocks(segment.blocks, played, said))
        active = [block for block in blocks if block["state"] == "active_allocated"]
        pool = segment.blocks[0].pool
        allocated = sum(block["size"] for block in active)
        yield {
            "device": device,
            "address": BASE_ADDRESS + segment.blocks[0].address,
            "total_size": sum(block["size"] for block in blocks),
            "allocated_size": allocated,
            "active_size": allocated,
            "requested_size": sum(block["requested_size"] for block in active),
            "stream": numbers[pool.stream],
            "segment_type": "small" if pool.is_small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": segment.expandable,
            "frames": [],
            "blocks": blocks,
        }


def _blocks(blocks: Iterable[Block], played: Played, said: _Frames) -> Iterator[dict[str, Any]]:
    for block in blocks:
        owner = None if block.free else played.owners[block.address]
        frames, category = ([], None) if owner is None else said(owner)
        row = {
            "address": BASE_ADDRESS + block.address,
            "size": block.size,
            "requested_size": 0 if block.free else block.requested,
            "state": "inactive" if block.free else "active_allocated",
            "frames": frames,
        }
        yield row if category is None else row | {"category": category}
