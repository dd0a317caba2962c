"""``PYTORCH_CUDA_ALLOC_CONF`` as the installed torch reads it, accepted and refused alike."""

from __future__ import annotations

import pytest

from raysim.training.allocator.config import parse_alloc_conf

pytestmark = pytest.mark.real
TEXTS = [
    "expandable_segments:True", "expandable_segments:true", "max_split_size_mb:10",
    "max_split_size_mb:20", "max_split_size_mb:21", "large_segment_size_mb:10",
    "large_segment_size_mb:12", "large_segment_size_mb:600", "garbage_collection_threshold:1.0",
    "garbage_collection_threshold:0.8", "garbage_collection_threshold:0",
    "roundup_power2_divisions:3", "roundup_power2_divisions:0", "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,>:8]", "roundup_power2_divisions:[256:1,500:2,>:8]",
    "max_non_split_rounding_mb:10", "max_non_split_rounding_mb:30", "max_split_size_mb",
    " expandable_segments : True , max_split_size_mb : 64", "expandable_segments:True,", "",
    "pinned_max_round_threshold_mb:5", "pinned_use_background_threads:True",
]  # fmt: skip


def taken(text: str) -> bool:
    try:
        parse_alloc_conf(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("text", TEXTS)
def test_torch_takes_and_refuses_the_same(text: str) -> None:
    torch = pytest.importorskip("torch")
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if change is None:
        pytest.skip("this torch cannot read settings without a GPU")
    change("large_segment_size_mb:20")  # settings add up within a process
    try:
        change(text)
    except (ValueError, RuntimeError):
        theirs = False
    else:
        theirs = True
    finally:
        change("large_segment_size_mb:20,expandable_segments:False")
    assert taken(text) == theirs
