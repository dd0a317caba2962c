"""Workload files: their header, what they print, which are meant; no Ray needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.errors import CalibrationError, ScenarioError
from raysim.measure.local_cluster import Printed
from raysim.measure.replay import replay
from raysim.measure.workload import Workload, find, read_output, read_workload

ROOT = Path(__file__).parents[2] / "validation/workloads"


def file(folder: Path, header: str, name: str = "some_bag.py") -> Path:
    path = folder / "own" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'"""A bag."""\n{header}\n')
    return path


GOOD = "# cluster: 2 CPU; 2 x 1 CPU, 80 MiB object store\n# role: calibration\n# repeat: 5"


def test_a_header_is_read(tmp_path: Path) -> None:
    found = read_workload(file(tmp_path, GOOD))
    assert (found.name, found.family, found.role) == ("some_bag", "own", "calibration")
    assert found.table == "replay_own_calibration"
    assert (found.repeat, found.computes) == (5, False)
    assert [node.num_cpus for node in found.declared.nodes] == [2, 1, 1]
    assert found.declared.nodes[2].object_store_bytes == 80 * 2**20


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("# cluster: 2 CPU", "some_bag.py:1   role: one line must say"),
        ("# cluster: 2 CPU\n# role: check", "some_bag.py:3   role:"),
        ("# cluster: 2 CPU\n# role: validation\n# repeat: 0", "some_bag.py:4   repeat: expected"),
        ("# cluster: 2 CPU\n# role: validation\n# compute: yes", "some_bag.py:4   compute:"),
        ("# role: validation", "some_bag.py:1   0 lines begin with"),
        ("# role: validation\n# cluster: 2 CPUs and more", "some_bag.py:3   cannot read"),
    ],
)
def test_a_wrong_header_is_refused_with_its_line(tmp_path: Path, header: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        read_workload(file(tmp_path, header))
    assert said in str(refused.value)


def test_rows_are_read_among_other_lines(tmp_path: Path) -> None:
    workload = read_workload(file(tmp_path, GOOD))
    lines = ["hello", '{"row": "a", "value": 1.5, "unit": "s"}', "@kill-node n1",
             '{"row": "b", "value": 2, "unit": "tasks/s"}']  # fmt: skip
    assert [(r.row, r.value, r.unit) for r in read_output(lines, workload)] == [
        ("a", 1.5, "s"), ("b", 2.0, "tasks/s"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "printed no row"),
        (['{"row": "a", "value": "soon", "unit": "s"}'], "ValueError"),
        (['{"row": "a", "value": 1}'], "KeyError 'unit'"),
        (['{"row": "a", "value": 1, "unit": "s"}'] * 2, "two rows 'a'"),
    ],
)
def test_output_that_makes_no_sense_is_refused(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        read_output(lines, read_workload(file(tmp_path, GOOD)))


def test_cases_are_parts_of_names_files_and_folders() -> None:
    assert {w.family for w in find(["ray_core/"], ROOT)} == {"ray_core"}
    assert {w.name for w in find(["tasks_chain"], ROOT)} == {"tasks_chain", "tasks_chain_fitted"}
    one = ROOT / "ray_core/tasks_fan.py"
    assert [w.path for w in find([str(one), "tasks_fan"], ROOT)] == [one]
    with pytest.raises(ScenarioError, match=r"did you mean .tasks_fan"):
        find(["task_fan"], ROOT)


def test_there_are_enough_workloads_and_a_quarter_calibrates() -> None:
    """Those that disturb their cluster come last, so that the others can share one."""
    known = find(["ray_core/"], ROOT)
    fitted = [w for w in known if w.role == "calibration"]
    assert len(known) >= 50
    assert 0.2 < len(fitted) / len(known) < 0.35
    assert all(w.name.endswith("_fitted") for w in fitted)
    disturbed = [w.declared.disturbed for w in known]
    assert disturbed == sorted(disturbed)


class FakeCluster:
    """Answers with lines; counts how often it was asked."""

    def __init__(self, answers: dict[str, Printed]) -> None:
        self.answers, self.asked = answers, []

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def want(self, declared: object, *, dashboard: bool) -> None:
        pass

    def run(self, program: Path) -> Printed:
        self.asked.append(program.stem)
        return self.answers[program.stem]


def printed(*lines: str, code: int = 0, errors: str = "") -> Printed:
    return Printed(lines=list(lines), errors=errors, code=code, seconds=1.0)


def test_a_replay_keeps_rows_resumes_and_tells_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workloads: list[Workload] = [
        read_workload(file(tmp_path, GOOD.replace("# repeat: 5", ""), name))
        for name in ("a_good.py", "b_dies.py", "c_late.py")
    ]
    row = '{"row": "r", "value": 2.5, "unit": "s"}'
    fake = FakeCluster(
        {"a_good": printed(row), "b_dies": printed(code=1, errors="x\nValueError: no"),
         "c_late": printed(row)}
    )  # fmt: skip
    monkeypatch.setattr("raysim.measure.replay.LocalCluster", lambda: fake)
    out = tmp_path / "data"
    first = replay(workloads[:2], out, repetitions=2, command="test")
    assert first.measured == ["a_good"]
    assert first.failed == {"b_dies": "exited with 1 after 1 s: ValueError: no"}
    assert fake.asked == ["a_good", "a_good", "b_dies"]

    again = replay(workloads, out, repetitions=2, budget_s=-1.0, command="test")
    assert (again.known, again.left) == (["a_good"], ["b_dies", "c_late"])
    assert len(fake.asked) == 3
    text = (out / "replay_own_calibration.csv").read_text().splitlines()
    assert text == ["workload,row,value,unit,repetitions,low,high", "a_good,r,2.5,s,2,2.5,2.5"]


def test_repetitions_that_print_other_rows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = read_workload(file(tmp_path, GOOD))
    answers = iter("abcde")

    class Fickle(FakeCluster):
        def run(self, program: Path) -> Printed:
            return printed(f'{{"row": "{next(answers)}", "value": 1, "unit": "s"}}')

    monkeypatch.setattr("raysim.measure.replay.LocalCluster", lambda: Fickle({}))
    done = replay([workload], tmp_path / "data", command="test")
    assert done.failed == {"some_bag": "its repetitions printed different rows"}


def test_a_folder_of_another_machine_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "data"
    out.mkdir()
    (out / "meta.yaml").write_text("hardware: {cpu: other, cores: 1, gpus: []}\nversions: {}\n")
    with pytest.raises(CalibrationError, match=r"was measured with other"):
        replay([read_workload(file(tmp_path, GOOD))], out, command="test")
