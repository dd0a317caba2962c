"""Our traces through Perfetto's own ``trace_processor``, where it is on the path.

No package ships it; get it from perfetto.dev. Elsewhere ``tests/perfetto_reader.py`` stands for it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raysim.kernel.record import ColumnRecorder
from raysim.results.ray.trace import records as of_program
from raysim.results.traces.chrome import write_chrome
from raysim.results.traces.perfetto import write_pftrace
from raysim.training.recording import record_outcome
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from tests.perfetto_reader import read
from tests.training_parts import plan, play
from tests.unit.results.ray_cases import as_seen_on_a_laptop

pytestmark = pytest.mark.real
SHELL = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
WRONG = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def pipeline() -> ColumnRecorder:
    records = ColumnRecorder()
    settings = PipelineSettings(stages=2, partition_method="uniform")
    record_outcome(play(plan(stage=1, mesh=Mesh(pp=2, dp=2), pipeline=settings)), records)
    return records


@pytest.mark.skipif(SHELL is None, reason="trace_processor is not on the path")
@pytest.mark.parametrize("story", [pipeline, lambda: of_program(as_seen_on_a_laptop().rows)])
@pytest.mark.parametrize("write", [write_pftrace, write_chrome])
def test_it_finds_nothing_wrong_and_counts_as_we_do(story, write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    records = story()
    ours = read(write_pftrace(records, tmp_path / "ours.pftrace"))
    path = write(records, tmp_path / "theirs")
    processor = TraceProcessor(trace=str(path), config=TraceProcessorConfig(bin_path=SHELL))
    try:
        assert [(row.name, row.value) for row in processor.query(WRONG)] == []
        counts = {
            table: next(iter(processor.query(f"select count(*) as n from {table}"))).n
            for table in ("slice", "counter", "flow")
        }
    finally:
        processor.close()
    assert counts == {
        "slice": len(ours.slices) + len(ours.instants), "counter": len(ours.counters),
        "flow": len(ours.flows),
    }  # fmt: skip
