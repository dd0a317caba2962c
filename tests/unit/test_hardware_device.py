from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.errors import InvariantViolation
from raysim.hardware.device import Gpu, MemoryLedger, Stream
from tests.hardware_parts import gpu


def test_a_stream_runs_in_order_and_waits_for_what_is_not_ready():
    stream = Stream("compute", ("node-0", "gpu-0", "compute"))
    assert stream.push(0, 10) == 0
    assert stream.push(3, 5) == 10  # ready before, but behind the first
    assert stream.push(40, 5) == 40  # idle until it is ready
    stream.wait(100)
    stream.wait(50)
    assert stream.push(0, 1) == 100
    assert (stream.free_at_ns, stream.busy_ns) == (101, 21)


def test_streams_of_a_gpu_are_made_on_use_and_overlap():
    device = Gpu(gpu(), (2, 5))
    assert device.stream("compute").push(0, 10) == device.stream("comm:dp").push(0, 10) == 0
    assert list(device.streams) == ["compute", "comm:dp"]
    assert device.stream("compute").track == ("node-2", "gpu-5", "compute")
    assert device.stream("compute").free_at_ns == 10


def ledger() -> MemoryLedger:
    """Entered out of order: 10 kept; 5 from t 1 to 4, 7 from t 3 to 6, 4 from t 4 to 9."""
    found = MemoryLedger()
    found.apply(0, "parameter", 10, "load")
    found.apply(3, "activation", 7, "layer 1")
    found.apply(6, "activation", -7, "layer 1 backward")
    found.apply(1, "temporary", 5, "layer 0")
    found.apply(4, "temporary", -5, "layer 0")
    found.apply(4, "temporary", 4, "layer 2")
    found.apply(9, "temporary", -4, "layer 2")
    return found


def test_ledger_sorts_by_time_and_keeps_order_within_an_instant():
    assert ledger().timeline() == [
        (0, "parameter", 10), (1, "temporary", 5), (3, "activation", 7), (4, "temporary", 0),
        (4, "temporary", 4), (6, "activation", 0), (9, "temporary", 0),
    ]  # fmt: skip


def test_peak_says_when_how_much_of_what_and_by_whom():
    peak = ledger().peak()
    assert (peak.t_ns, peak.total_bytes, peak.label) == (3, 22, "layer 1")
    assert peak.by_category == {"parameter": 10, "activation": 7, "temporary": 5}
    assert list(peak.by_category) == ["parameter", "activation", "temporary"]
    nothing = MemoryLedger().peak()
    assert (nothing.total_bytes, nothing.by_category, nothing.label) == (0, {}, "")


def test_entries_after_a_question_count():
    book = ledger()
    assert book.peak().total_bytes == 22
    book.apply(2, "logits", 100, "lm_head")
    assert book.peak().total_bytes == 122
    assert book.total_bytes(2) == 115
    assert book.held(2) == {"parameter": 10, "temporary": 5, "logits": 100}
    assert book.categories == ["parameter", "activation", "temporary", "logits"]


def test_freeing_more_than_there_is_is_our_fault_and_named():
    book = ledger()
    book.check()
    book.apply(5, "activation", -8, "layer 1 twice")
    # Of the 7 there at t 5, 8 are freed.
    with pytest.raises(
        InvariantViolation, match=r"layer 1 twice frees 8 bytes of activation at t = 5 ns, 1 more"
    ):
        book.check()


def test_clearing_frees_what_is_held_and_forgets_the_future():
    book = ledger()
    book.clear(5)
    assert book.held(5) == book.held(100) == {}
    assert book.peak().total_bytes == 22
    book.check()


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from("abc"), st.integers(0, 100))),
    st.randoms(use_true_random=False),
)
def test_peak_is_the_highest_point_of_the_timeline_in_whatever_order_entered(rows, random):
    # Each allocation lives for five instants.
    entries = [(t, c, b) for t, c, b in rows] + [(t + 5, c, -b) for t, c, b in rows]
    by_time = {t: sum(b for s, _, b in entries if s == t and b > 0) for t, _, _ in entries}
    frees_first = sorted(entries, key=lambda e: (e[0], e[2]))
    random.shuffle(entries)
    book, sorted_book = MemoryLedger(), MemoryLedger()
    for entry in frees_first:
        sorted_book.apply(*entry)
    for t, c, b in entries:
        book.apply(t, c, b)
    best, total = 0, 0
    for _, _, b in frees_first:
        total += b
        best = max(best, total)
    assert total == 0
    assert sorted_book.peak().total_bytes == best
    # The order within an instant may raise the peak by what that instant allocates, never lower it.
    assert best <= book.peak().total_bytes <= best + max(by_time.values(), default=0)
    assert sum(book.peak().by_category.values()) == book.peak().total_bytes
