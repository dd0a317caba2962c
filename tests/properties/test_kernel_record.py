"""What was recorded is what is read, whatever the block size."""

from hypothesis import given
from hypothesis import strategies as st

from raysim.kernel import ColumnRecorder, Counter, Instant, NullRecorder, Simulation, Span

TEXT = st.sampled_from(["forward", "backward", "all_gather", "", "node-0"])
TRACK = st.lists(TEXT, min_size=1, max_size=3).map(tuple)
NS = st.integers(0, 2**62)
ARGS = st.none() | st.dictionaries(TEXT, st.integers(), max_size=2)
SPANS = st.builds(
    lambda track, name, category, ends, args: Span(track, name, category, *sorted(ends), args),
    TRACK, TEXT, TEXT, st.tuples(NS, NS), ARGS,
)  # fmt: skip
COUNTERS = st.builds(Counter, TRACK, TEXT, NS, st.floats(allow_nan=False))
INSTANTS = st.builds(Instant, TRACK, TEXT, TEXT, NS, ARGS)


@given(st.lists(SPANS | COUNTERS | INSTANTS, max_size=60), st.integers(1, 20))
def test_columns_give_back_what_was_recorded(records, block):
    recorder = ColumnRecorder(block=block)
    for i, record in enumerate(records):
        getattr(recorder, type(record).__name__.lower())(*record)
        if i == len(records) // 2:
            recorder.spans()  # reading half-way changes nothing
    kinds = {Span: recorder.spans(), Counter: recorder.counters(), Instant: recorder.instants()}
    for kind, read in kinds.items():
        assert read == [r for r in records if type(r) is kind]
        assert all(type(r) is kind for r in read)
    columns = (recorder.span_columns(), recorder.counter_columns(), recorder.instant_columns())
    for fields, (kind, read) in zip(columns, kinds.items(), strict=True):
        assert tuple(fields) == kind._fields
        assert [kind(*row) for row in zip(*fields.values(), strict=True)] == read
    assert len(recorder) == len(records)


def test_nothing_is_kept_by_default():
    recorder = Simulation().recorder
    assert isinstance(recorder, NullRecorder)
    assert not recorder.enabled
    assert ColumnRecorder().enabled
