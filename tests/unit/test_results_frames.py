"""Frames: what was recorded, row by row, in the columns the dictionary promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from raysim.results.frames import SCHEMA, Frames
from tests.unit.result_cases import recording


@pytest.fixture
def frames() -> Frames:
    return Frames(recording(), gpus_per_node=8)


def test_every_frame_has_exactly_the_columns_of_the_dictionary(frames: Frames) -> None:
    assert {name: list(frames[name].columns) for name in frames} == {
        name: list(columns) for name, columns in SCHEMA.items()
    }


def test_times_are_int64_and_ids_text(frames: Frames) -> None:
    for name, frame in frames.items():
        for column in frame.columns:
            if column.endswith("_ns"):
                assert frame[column].dtype == "int64", (name, column)
            if column in {"rank", "node", "gpu"}:
                assert frame[column].dropna().map(type).eq(str).all(), (name, column)


def test_rank_counts_gpus_over_nodes(frames: Frames) -> None:
    places = frames["spans"][["node", "rank"]].drop_duplicates().to_dict("records")
    assert sorted((p["node"], p["rank"]) for p in places) == [("node-0", "1"), ("node-1", "9")]


def test_steps_sum_the_work_of_each_category(frames: Frames) -> None:
    steps = frames["steps"]
    first = steps[(steps.step == 0) & (steps["rank"] == "1")].set_index("category")
    assert first.busy_ns.to_dict() == {"backward": 60, "collective": 30, "forward": 30, "p2p": 10}
    assert first.duration_ns.unique().tolist() == [90]


def test_memory_and_links_come_from_counters(frames: Frames) -> None:
    memory = frames["memory"]
    assert memory[memory["rank"] == "9"][["t_ns", "bytes"]].values.tolist() == [
        [30, 2**30], [90, 0], [130, 2**30], [190, 0],
    ]  # fmt: skip
    assert frames["links"].link.unique().tolist() == ["node-0 nic 1 out"]


def test_what_has_no_column_of_its_own_stays_in_args(frames: Frames) -> None:
    sends = frames["spans"].query("name == 'send'")
    assert sends.args.tolist() == ['{"flow": 7}', '{"flow": 8}']


def test_parquet_holds_the_same_rows(frames: Frames, tmp_path: Path) -> None:
    written = {p.stem for p in frames.write(tmp_path)}
    assert written == {"spans", "collectives", "steps", "memory", "links", "instants"}
    for name in written:
        read = pd.read_parquet(tmp_path / f"{name}.parquet")
        assert list(read.columns) == list(SCHEMA[name])
        for column in read:
            pairs = zip(read[column].tolist(), frames[name][column].tolist(), strict=True)
            for one, other in pairs:
                assert (pd.isna(one) and pd.isna(other)) or one == other


def test_writing_does_not_pay_for_pandas(tmp_path: Path, root: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from raysim.results.frames import Frames;"
        "from tests.unit.result_cases import recording;"
        f"Frames(recording(), 8).write(Path({str(tmp_path)!r}));"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_a_run_without_records_has_empty_frames_and_writes_none(tmp_path: Path) -> None:
    empty = Frames(None, gpus_per_node=8)
    assert all(frame.empty for frame in empty.values())
    assert empty.write(tmp_path) == []


def test_an_unknown_frame_names_the_known_ones(frames: Frames) -> None:
    with pytest.raises(KeyError, match="collectives"):
        frames["tasks"]
