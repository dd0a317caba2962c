"""Settings of PyTorch's CUDA caching allocator: ``PYTORCH_CUDA_ALLOC_CONF``, read as torch does.

Source: torch 2.13, ``c10/core/AllocatorConfig.h`` and ``.cpp``, ``c10/cuda/CUDAAllocatorConfig.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from raysim.units import MIB

MIN_BLOCK_BYTES = 512
SMALL_BYTES = MIB
"""The largest request of the small pool."""
SMALL_SEGMENT_BYTES = 2 * MIB
MIN_LARGE_BYTES = 10 * MIB
"""From here on a request gets a segment of its own size."""
ROUND_LARGE_BYTES = 2 * MIB
INTERVALS = 16
"""Powers of two from 1 MiB to beyond 32 GiB that ``roundup_power2_divisions`` distinguishes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorConfig:
    """What ``PYTORCH_CUDA_ALLOC_CONF`` may say that moves memory; the defaults are torch's."""

    expandable_segments: bool = False
    max_split_size_mb: int | None = None
    """Blocks from this size on are not split; None: all are."""
    max_non_split_rounding_mb: int | None = None
    """A cached block may be so much larger than a request that must not split it; None: 20."""
    large_segment_size_mb: int = 20
    garbage_collection_threshold: float = 0.0
    """Share of the allowed memory above which cached blocks are freed; acts only below a
    ``per_process_memory_fraction`` of 1, as in torch."""
    roundup_power2_divisions: tuple[int, ...] = ()
    """For requests of 1, 2, 4 ... MiB and more: into how many steps the way to the next power of
    two is divided; empty, 0 or 1: no such rounding."""
    per_process_memory_fraction: float = 1.0

    def round_bytes(self, size_bytes: int) -> int:
        """Bytes of the block that a request asks for (``round_size``)."""
        if size_bytes < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        if self.roundup_power2_divisions:
            interval = min(max(size_bytes.bit_length() - 21, 0), INTERVALS - 1)
            divisions = self.roundup_power2_divisions[interval]
            if divisions > 1 and size_bytes > MIN_BLOCK_BYTES * divisions:
                return _next_division(size_bytes, divisions)
        return -(-size_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES

    def segment_bytes(self, rounded_bytes: int) -> int:
        """Bytes asked of the driver for a block that is not cached (``get_allocation_size``)."""
        if rounded_bytes <= SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if rounded_bytes < MIN_LARGE_BYTES:
            return self.large_segment_size_mb * MIB
        return -(-rounded_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def _next_division(size_bytes: int, divisions: int) -> int:
    """Up to the next of ``divisions`` equal steps between two powers of two."""
    floor = 1 << (size_bytes.bit_length() - 1)
    if floor == size_bytes:
        return size_bytes
    step = floor >> (divisions.bit_length() - 1)
    return -(-size_bytes // step) * step if step else floor << 1


IGNORED = {
    "pinned_use_background_threads", "release_lock_on_cudamalloc", "pinned_num_register_threads",
    "pinned_use_cuda_host_register", "graph_capture_record_stream_reuse", "pinned_free_catch_all",
    "pinned_reserve_segment_size_mb", "throw_on_cudamalloc_oom", "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb", "expandable_segments_handle_type",
}  # fmt: skip
"""Keys torch knows that move nothing here: the host's allocator, locks, CUDA graphs."""


def parse_alloc_conf(text: str) -> AllocatorConfig:
    """The value of ``PYTORCH_CUDA_ALLOC_CONF``, such as ``expandable_segments:True``.

    Raises
    ------
    ValueError
        A key or a value that torch would refuse, or a backend without this allocator.
    """
    said: dict[str, Any] = {}
    for key, value in _pairs(text):
        if key == "backend":
            if value != "native":
                raise ValueError(f"backend {value} is not emulated; remove it or write native")
        elif key in _READERS:
            said[key] = _READERS[key](key, value)
        elif key not in IGNORED:
            raise ValueError(f"torch knows no key {key!r}{_nearest(key)}")
    config = AllocatorConfig(**said)
    if config.large_segment_size_mb * MIB <= MIN_LARGE_BYTES:
        raise ValueError("large_segment_size_mb must be above 10")
    for key in ("max_split_size_mb", "max_non_split_rounding_mb"):
        size = said.get(key, config.large_segment_size_mb)
        if size < config.large_segment_size_mb:
            least = f"large_segment_size_mb, {config.large_segment_size_mb}"
            raise ValueError(f"{key} must be at least {least}, got {size}")
    return config


def read_allocator(value: str | Mapping[str, Any]) -> AllocatorConfig:
    """Settings from the environment variable's text, or from a mapping with the same keys.

    Raises
    ------
    ValueError
        As ``parse_alloc_conf``.
    """
    if isinstance(value, str):
        return parse_alloc_conf(value)
    return parse_alloc_conf(",".join(f"{key}:{_written(item)}" for key, item in value.items()))


def _written(value: Any) -> str:
    """A YAML value as torch's syntax writes it."""
    if isinstance(value, Mapping):
        return "[" + ",".join(f"{key}:{item}" for key, item in value.items()) + "]"
    return str(value)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """``key:value`` by ``key:value``; commas within brackets belong to the value."""
    depth = start = 0
    plain = "".join(text.split())
    for at, char in enumerate([*plain, ","]):
        depth += (char == "[") - (char == "]")
        if char == "," and not depth:
            part, start = plain[start:at], at + 1
            key, colon, value = part.partition(":")
            if part and not (colon and key and value):
                raise ValueError(f"expected key:value, got {part!r}")
            if part:
                yield key, value
    if depth:
        raise ValueError(f"a bracket is not closed in {text!r}")


def _boolean(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError(f"{key} must be True or False, got {value!r}")
    return value == "True"


def _whole(key: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise ValueError(f"{key} must be a whole number of MiB, got {value!r}")
    return int(value)


def _share(key: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0.0 < share < 1.0 and not (share == 1.0 and key == "per_process_memory_fraction"):
        raise ValueError(f"{key} must be between 0 and 1, got {value!r}")
    return share


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """``4`` for all sizes, or ``[256:1,512:2,1024:4,>:8]``: from so many MiB on."""
    if not value.startswith("["):
        return (_power(key, value),) * INTERVALS
    found, last = [0] * INTERVALS, -1
    for part in value.strip("[]").split(","):
        size, colon, steps = part.partition(":")
        if not colon:
            raise ValueError(f"{key}: expected size:divisions, got {part!r}")
        divisions = 0 if steps == "0" else _power(key, steps)
        if size == ">":
            found[last + 1 :] = [divisions] * (INTERVALS - last - 1)
            continue
        place = min(_power(key, size).bit_length() - 1, INTERVALS - 1)
        if last < 0:
            found[:place] = [divisions] * place
        found[place], last = divisions, place
    return tuple(found)


def _power(key: str, value: str) -> int:
    number = _whole(key, value)
    if number < 1 or number & (number - 1):
        raise ValueError(f"{key}: {value} is not a power of two")
    return number


def _nearest(key: str) -> str:
    near = get_close_matches(key, [*_READERS, *IGNORED], n=1)
    return f"; did you mean {near[0]}?" if near else ""


_READERS: dict[str, Callable[[str, str], Any]] = {
    "expandable_segments": _boolean,
    "max_split_size_mb": _whole,
    "max_non_split_rounding_mb": _whole,
    "large_segment_size_mb": _whole,
    "garbage_collection_threshold": _share,
    "roundup_power2_divisions": _divisions,
    "per_process_memory_fraction": _share,
}
