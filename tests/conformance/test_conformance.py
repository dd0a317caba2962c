"""Programs print on raysim what they print on real Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.errors import ScenarioError
from raysim.scenario.declaration import parse_nodes
from tests.conformance import cluster
from tests.conformance.raysim_side import run_on_raysim


@pytest.mark.parametrize("program", cluster.programs(), ids=lambda program: program.stem)
def test_prints_what_real_ray_printed(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # it would be every worker's
    pytest.importorskip("raysim.rayapi.loader", reason="Ray programs cannot be loaded yet")
    assert run_on_raysim(program) == cluster.recorded(program)


def test_every_program_has_a_recording_and_no_recording_is_left_over() -> None:
    programs = {program.stem for program in cluster.programs()}
    assert {path.stem for path in cluster.EXPECTED.glob("*.txt")} == programs


@pytest.mark.parametrize(
    ("text", "count"), [("2 CPU", 1), ("head 2 CPU", 1), ("2 x 4 CPU, 1 GPU", 2)]
)
def test_a_declaration_is_read(text: str, count: int) -> None:
    nodes = parse_nodes(text)
    assert len(nodes) == count
    assert {node.num_cpus for node in nodes} == {4 if "4" in text else 2}


def test_parts_of_a_node_are_read() -> None:
    (node,) = parse_nodes('1 CPU, 80 MiB object store, {"a": 1, "b": 2}, labels {"z": "q"}')
    assert node.object_store_bytes == 80 * 2**20
    assert node.resources == {"a": 1, "b": 2}
    assert node.labels == {"z": "q"}
    assert node.memory_bytes is None


def test_a_declaration_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ScenarioError, match="cannot read"):
        parse_nodes("2 CPU, many GPUs")
