"""Measuring with real torch: every table of a CPU, and collectives on two ranks over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.calibrate.direct_host import host_speed
from raysim.errors import CalibrationError
from raysim.measure import collectives, gpu, host, host_data, host_memory
from raysim.measure.session import Budget, Session
from raysim.measure.table import read_rows

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")


def session_in(folder: Path, **more: object) -> Session:
    # every point takes its least repetitions, which the budget only ends when something hangs
    return Session(folder=folder, budget=Budget(120), command="", quick=True, **more)


def test_every_table_of_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysim.measure.session.POINT_S", 0.0)
    session = session_in(tmp_path, device="cpu")
    gpu.measure(session)
    assert session.left_out == []
    names = {path.stem for path in tmp_path.glob("*.csv")}
    assert names == {
        "launch", "dispatch", "copies", "elementwise", "gemm", "convolution", "attention",
        "optimizer",
    }  # fmt: skip
    rows = {name: read_rows(tmp_path / f"{name}.csv") for name in names}
    assert sum(map(len, rows.values())) == session.measured
    assert all(0 < r.low <= r.value <= r.high for table in rows.values() for r in table)
    kernels = {(r.parameters["kernel"], r.parameters["direction"]) for r in rows["attention"]}
    assert len(kernels) == 4
    again = session_in(tmp_path, device="cpu")
    gpu.measure(again)
    assert (again.measured, again.kept) == (0, session.measured)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("measure", "asked", "said"),
    [
        (gpu.measure, {"device": "cuda"}, "--device cuda: torch .* sees no GPU here"),
        (gpu.measure, {"device": "tpu"}, "--device tpu: must be cuda or cpu"),
        (collectives.measure, {"backend": "nccl"}, "--backend nccl: torch .* sees 0 GPUs"),
        (collectives.measure, {"backend": "mpi"}, "--backend mpi: must be nccl or gloo"),
    ],
)
def test_absent_hardware_is_named(tmp_path: Path, measure, asked: dict, said: str) -> None:
    with pytest.raises(CalibrationError, match=said):
        measure(session_in(tmp_path, **asked))
    assert list(tmp_path.iterdir()) == []


def test_collectives_on_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    session = session_in(tmp_path, backend="gloo", ranks=(2,))
    session.budget = Budget(15)
    collectives.measure(session)
    rows = {
        (r.parameters["op"], r.parameters["bytes"], r.parameters["quantity"]): r
        for r in read_rows(tmp_path / "collectives.csv")
    }
    assert session.left_out == []
    assert session.measured == len(rows)
    assert ("barrier", "0", "time") in rows
    time, bus = (rows["all_gather", "1024", name] for name in ("time", "busbw"))
    assert 1024 / time.high / 2 <= bus.value * 1.001  # medians of both, of an even number of times
    assert bus.value <= 1024 / time.low / 2 * 1.001


def test_a_host_s_layers_are_counted_and_timed(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    host.measure(session)
    assert session.left_out == []
    rows = {str(r.parameters["quantity"]): r for r in read_rows(tmp_path / "host_dispatch.csv")}
    assert set(rows) == {"forward", "backward", "checkpoint", "collective"}
    counted = [rows["backward"].parameters[key] for key in ("operators", "nodes", "modules")]
    # Llama's, without the casts of 16 bits; nine parameters accumulate gradients
    assert list(map(int, counted)) == [85, 92, 13]
    speed = host_speed(tmp_path)
    assert speed is not None
    assert 0.05 < speed.value < 5


def test_a_batch_s_making_is_timed_by_its_samples(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    host_data.measure(session)
    assert session.left_out == []
    rows = {r.parameters["what"]: r for r in read_rows(tmp_path / "host_data.csv")}
    assert rows.keys() == {*host_data.DRAWN, "stack", "index", "loader", "channels_last"}
    # a loader of no workers indexes every sample, then stacks them all
    assert rows["loader"].high > rows["index"].low + rows["stack"].low


def test_what_threads_do_over_memory_is_timed_by_their_number(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    session = session_in(tmp_path)
    host_memory.measure(session)
    assert session.left_out == []
    assert torch.get_num_threads() == before
    rows = {
        (int(r.parameters["threads"]), r.parameters["quantity"]): r
        for r in read_rows(tmp_path / "host_memory.csv")
    }
    quantities = {"adamw_fused", "in_place", "norm", "cast", "cast_to_new"}
    assert rows.keys() == {(n, q) for n in {1, before} for q in quantities}
    assert rows[1, "norm"].parameters["bytes"] == "400000"
    # AdamW's 28 bytes an element against 4 read by a norm
    assert rows[1, "adamw_fused"].value > rows[1, "norm"].value > 0
