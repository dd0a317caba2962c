"""``--verbose`` and ``--log-file``: the same lines but for the clock, and none where not asked."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import raysim
from raysim.cli import logs, main
from tests.unit.program_cases import SQUARES, script

SCENARIO = str(Path("scenarios/mlp_pipeline").resolve())


def timeless(text: str) -> list[str]:
    """Lines without the wall clock's times."""
    return [re.sub(r"took [\d.]+ s", "took", line[13:]) for line in text.splitlines()]


def logged(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    capsys.readouterr()
    assert main(["run", SCENARIO, "-q", "--no-trace", *flags]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Fits")
    return err


def test_once_says_what_was_read_taken_and_done(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = timeless(logged(capsys, "-v"))
    assert all(re.match(r"INFO    raysim\.[\w.]+: ", line) for line in lines)
    said = "\n".join(lines)
    for pattern in (
        r"raysim.scenario.documents: read \S+/scenario.yaml: \d+ bytes, sha256 [0-9a-f]{12}",
        r"raysim.scenario.load: taken: seed: default 0",
        r"raysim.training.prepared: compiled \d+ ranks, \d+ operations",
        r"raysim.cli.logs: compiling rank: took",
        r"raysim.cli.run: wrote runs/mlp-pipeline-",
    ):
        assert re.search(pattern, said), pattern


def test_twice_says_every_input_and_nothing_else_changes(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once, twice = timeless(logged(capsys, "-v")), timeless(logged(capsys, "-v", "-v"))
    more = [line for line in twice if line.startswith("DEBUG")]
    assert any(" raysim.run: input " in line for line in more)
    rest = [line for line in twice if not line.startswith("DEBUG")]
    tables = re.compile("raysim.perf.tables")  # read once per process
    assert [x for x in rest if not tables.search(x)] == [x for x in once if not tables.search(x)]


def test_a_file_instead_and_the_same_lines_again(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged(capsys)  # tables are read once per process
    assert logged(capsys, "--log-file", "a.txt") == ""
    assert logged(capsys, "--log-file", "b.txt", "-v") == ""
    first, second = (timeless(Path(n).read_text(encoding="utf-8")) for n in ("a.txt", "b.txt"))
    assert first == second
    assert first


def test_nothing_is_said_unless_asked_and_nothing_stays_behind(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged(capsys, "-v")
    assert logs.ROOT.handlers == []
    assert logs.ROOT.level == logging.NOTSET
    assert logged(capsys) == ""


def test_log_lines_are_no_output_of_the_program(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(in_tmp, SQUARES)
    assert main(["run", "main.py", "--compute", "declared", "-vv", "-o", "done"]) == 0
    assert "DEBUG   raysim.kernel.simulation: played to" in capsys.readouterr().err
    assert Path("done/output.txt").read_text(encoding="utf-8") == "10416\n"


LOGS = """
import logging
logging.getLogger().addHandler(logging.StreamHandler())
logging.getLogger().setLevel(logging.INFO)
logging.info("its own")
"""


def test_a_program_that_logs_hears_itself_alone(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(in_tmp, LOGS + SQUARES)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        assert main(["run", "main.py", "--compute", "declared", "-q"]) == 0
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert capsys.readouterr().err == "its own\n10416\n"


def test_a_file_that_cannot_be_written_is_the_users_error(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", SCENARIO, "--log-file", "absent/log.txt"]) == 2
    assert capsys.readouterr().err == "--log-file absent/log.txt: No such file or directory\n"


def test_python_gets_the_same_by_its_own_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="raysim"):
        raysim.run(raysim.load(SCENARIO), record=False, what_if=False)
    names = {record.name for record in caplog.records}
    assert names >= {
        "raysim.scenario.documents",
        "raysim.scenario.load",
        "raysim.training.prepared",
    }
