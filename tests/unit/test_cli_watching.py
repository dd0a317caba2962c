"""Progress of long runs: on a terminal only, never in a pipe, and it changes nothing."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import raysim
from raysim.cli.watch import REFRESHES_PER_S, Watch, span, watching
from raysim.kernel.progress import Moment, Progress
from raysim.kernel.simulation import Simulation
from raysim.raycore.state_log import Change, StateLog
from raysim.scenario.script import script_scenario
from raysim.workloads.watching import Watching, known_end_ns
from tests.unit.program_cases import SQUARES, script

BUSY = (
    "import time, ray\nray.init()\n"
    "@ray.remote\ndef f():\n    time.sleep(1)\n"
    "for i in range(1500):\n    ray.get([f.remote() for _ in range(16)])\nprint('done')\n"
)
ENDLESS = BUSY.replace("range(1500)", "range(10**6)")
SELFISH = """
import ray
ray.init()
@ray.remote
def f():
    try:
        while True:
            pass
    except BaseException:
        print("mine")
print("begun", flush=True)
ray.get(f.remote())
"""
TRAINING = Path("scenarios/mlp_pipeline").resolve()
ROOT = Path(__file__).resolve().parents[2]


class Command:
    """``raysim`` with a terminal as standard error and a pipe as standard output."""

    def __init__(self, folder: Path, *arguments: str, columns: int = 100) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "raysim", *arguments],
            cwd=folder, stdout=subprocess.PIPE, stderr=theirs, text=True,
            env={
                **os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": str(columns),
            },
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def until(self, pattern: str = "(?!)") -> str:
        """What the terminal has seen when that has come, or all at the end."""
        while not re.search(pattern, self.seen):
            try:
                part = os.read(self.ours, 4096)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            self.seen += part.decode()
        return self.seen

    def end(self, code: int = 0) -> tuple[str, str]:
        """What the terminal and the pipe got in all."""
        assert self.process.stdout is not None
        self.until()
        printed = self.process.stdout.read()
        self.process.stdout.close()
        os.close(self.ours)
        assert self.process.wait() == code, self.seen
        return self.seen, printed


def program(folder: Path, *flags: str) -> Command:
    return Command(folder, "run", "main.py", "--compute", "declared", *flags)


def test_a_terminal_shows_where_the_program_is(tmp_path: Path) -> None:
    script(tmp_path, BUSY)
    seen, printed = program(tmp_path).end()
    assert re.search(r"[\d,]+ of [\d,]+ tasks finished, [\d,]+ running on 1 node", seen)
    assert re.search(r"[\d.]+ \w+ virtual  \d+ s here", seen)
    assert "writing runs/main-" in seen
    assert printed.startswith("done\n")
    assert "virtual  " not in printed


def test_a_terminal_shows_what_is_done_to_a_training_job(tmp_path: Path) -> None:
    large = str(TRAINING.parent / "llama31_70b_megatron")
    seen, printed = Command(tmp_path, "run", large, "--no-trace").end()
    assert re.search(r"\[#* *\] +\d+%  (compiling|memory|evaluation|what would|recording)", seen)
    assert printed.startswith("Fits")


def test_a_terminal_shows_the_best_of_a_plan_so_far(tmp_path: Path) -> None:
    bert = str(TRAINING.parent / "bert_mrpc_zero3")
    seen, _ = Command(tmp_path, "plan", bert, "--vary", "train.micro_batch=1,2,4,8").end()
    assert re.search(r"\d of 4 tried, best so far \$[\d.]+", seen)


@pytest.mark.parametrize("flag", ["--quiet", "--json"])
def test_quiet_and_json_show_nothing(tmp_path: Path, flag: str) -> None:
    script(tmp_path, SQUARES)
    seen, printed = program(tmp_path, flag).end()
    assert "tasks" not in seen
    assert "\x1b" not in seen
    assert printed.startswith(("Finished in", "{"))


def test_a_pipe_gets_the_report_alone(tmp_path: Path) -> None:
    script(tmp_path, BUSY)
    command = [sys.executable, "-m", "raysim", "run", "main.py", "--compute", "declared"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.stderr == ""


def test_an_interrupt_says_what_had_been_done(tmp_path: Path) -> None:
    script(tmp_path, ENDLESS)
    command = program(tmp_path)
    command.until(r"[1-9]\d* of [\d,]+ tasks finished")
    command.process.send_signal(signal.SIGINT)
    seen, printed = command.end(130)
    last = " ".join(seen.split()).rpartition("Interrupted after ")[2]
    assert re.match(r"\d+ s at [\d.]+ \w+ virtual: [\d,]+ of [\d,]+ tasks finished", last)
    assert re.search(r"Nothing was written; --until [\d.]+(s|min) predicts up to there.$", last)
    assert "Traceback" not in seen
    assert printed == ""
    assert not (tmp_path / "runs").exists()


def test_an_interrupt_is_not_the_programs(tmp_path: Path) -> None:
    script(tmp_path, SELFISH)
    command = program(tmp_path)
    assert command.process.stdout is not None
    assert command.process.stdout.readline() == "begun\n"
    time.sleep(0.5)  # the task is in its loop then
    command.process.send_signal(signal.SIGINT)
    seen, _ = command.end(130)
    assert "Interrupted after" in seen


def test_an_interrupted_plan_keeps_its_trials(tmp_path: Path) -> None:
    question = [
        "plan", str(TRAINING.parent / "bert_mrpc_zero3"), "--vary", "train.micro_batch=1,2,4,8",
        "--vary", "train.zero_stage=1,2,3", "--vary", "train.precision=bf16,fp16",
        "--vary", "train.seq_len=64,96,128", "--jobs", "2",
    ]  # fmt: skip
    command = Command(tmp_path, *question)
    command.until(r"[1-9] of 72 tried, best so far")
    command.process.send_signal(signal.SIGINT)
    seen, printed = command.end(130)
    said = " ".join(seen.split())
    kept = re.search(r"(\d+) of 72 points are decided, and .* kept in runs/plan-", said)
    assert kept
    assert 1 <= int(kept[1]) < 72
    assert f"{kept[1]} of 72 tried" in printed
    assert "Traceback" not in seen
    again, _ = Command(tmp_path, *question).end()
    first = re.search(r"(\d+) of 72 tried", again)
    assert first
    assert int(first[1]) >= int(kept[1])


def test_watching_counts_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = script_scenario(script(tmp_path, SQUARES), compute="declared")
    asked: list[Callable[[], Moment]] = []
    monkeypatch.setattr(Progress, "playing", lambda _, ask: asked.append(ask))
    watched = raysim.run(scenario)
    (where,) = asked
    assert where().doing == "32 of 32 tasks finished, 0 running on 1 node"
    assert where() == where()
    assert where().events > 32
    alone = raysim.run(scenario)
    assert alone.summary["simulation"]["digest"] == watched.summary["simulation"]["digest"]


def test_watching_a_training_job_changes_nothing() -> None:
    seen: list[tuple[str, float]] = []
    scenario = raysim.load(TRAINING)
    given: list[Progress] = []
    watched = raysim.run(scenario, watch=given.append, progress=lambda *told: seen.append(told))
    assert watched.summary == raysim.run(scenario).summary
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert {doing for doing, _ in seen} >= {"compiling rank", "memory of rank", "adding up"}
    assert given[0]() == Moment("done", 1.0)


def test_parts_of_a_phase_have_their_share_and_their_name() -> None:
    progress = Progress()
    progress.phase("compiling rank", 0.2)
    progress.phase("playing", 0.6)
    progress.part(3, 4)
    assert progress() == Moment("playing 3 of 4", pytest.approx(0.4))
    progress.playing(lambda: Moment("there", 0.5, 7))
    assert progress() == Moment("there", pytest.approx(0.45), 7)


def test_nodes_failures_and_the_end_are_said() -> None:
    log, simulation = StateLog(), Simulation()
    where = Watching(simulation, log, end_ns=4_000_000_000)
    assert where().doing == "no tasks yet on 0 nodes"
    rows = [("node", n, "ALIVE") for n in (1, 2, 3)] + [("node", 2, "RESOURCES")]
    rows += [("task", 1, s) for s in ("PENDING_ARGS_AVAIL", "RUNNING", "FAILED")]
    rows += [
        ("node", 3, "DEAD"),
        ("actor", 7, "ALIVE"),
        ("actor", 8, "ALIVE"),
        ("actor", 8, "DEAD"),
    ]
    log.rows += [Change(kind, n, state, 0, -1, 0, None) for kind, n, state in rows]  # type: ignore[arg-type]
    simulation.run("1s")
    here = where()
    assert here.doing == (
        "1 of 1 tasks finished, 0 running, 1 actor on 2 nodes; 1 attempts failed; 1 nodes gone"
    )
    assert (here.share, here.now_ns, here.end_ns) == (0.25, 10**9, 4 * 10**9)
    simulation.run("5s")
    assert (where().share, where().end_ns) == (None, None)


def test_the_end_of_a_load_is_known() -> None:
    served = raysim.load(TRAINING.parent / "serve_burst")
    assert known_end_ns(served.job) == 600 * 10**9  # type: ignore[union-attr]
    swept = raysim.load(TRAINING.parent / "asha_sweep")
    assert known_end_ns(swept.job) is None  # type: ignore[union-attr]


def test_looking_costs_less_than_a_hundredth() -> None:
    """CPU time of a look at a run that writes 60,000 rows a second, as often as it is looked at."""
    log = StateLog()
    watch, progress = Watch(), Progress()
    progress.playing(Watching(Simulation(), log))
    watch.follow(progress)
    states = ("PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "RUNNING", "FINISHED")
    new = [Change("task", 1, state, 0, 1, 1, None) for state in states] * 3750  # type: ignore[arg-type]
    took = []
    for _ in range(10):
        log.rows += new
        begin = time.thread_time()
        watch.lines(80)
        took.append(time.thread_time() - begin)
    assert REFRESHES_PER_S * min(took) < 0.01


@pytest.fixture
def at_s(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """The wall clock, to be set."""
    now = [100.0]
    monkeypatch.setattr("raysim.cli.terminal.wall_s", lambda: now[0])
    return lambda s: now.__setitem__(0, 100.0 + s)


def test_what_is_left_follows_the_pace_since_the_first_share(
    at_s: Callable[[float], None],
) -> None:
    watch = Watch()
    at_s(10)
    watch.told("50 of 100 tried", 0.5)  # these were read, not tried
    assert watch.lines(80) == ["[##########          ]  50%  50 of 100 tried", "10 s here"]
    at_s(20)
    watch.told("60 of 100 tried", 0.6)
    assert watch.lines(80)[1] == "20 s here  about 40 s left"


def test_speed_is_of_late_and_the_narrow_get_less(at_s: Callable[[float], None]) -> None:
    watch, events = Watch(), 0

    def here() -> Moment:
        return Moment("playing", 0.1, 5 * 10**9, 50 * 10**9, events)

    watch.follow(here)  # type: ignore[arg-type]
    watch.lines(80)
    for second in range(1, 9):
        at_s(second)
        events += 12_345
        said = watch.lines(80)[1]
    assert said == "5.00 s of 50.0 s virtual  8 s here  12,000 events/s"
    assert watch.lines(40)[1] == "5.00 s of 50.0 s virtual  8 s here"
    assert all(len(line) <= 20 for line in watch.lines(20))
    assert watch.interrupted() == "Interrupted after 8 s at 5.00 s of 50.0 s virtual: playing."


def test_a_program_without_an_end_in_sight_is_told_of_until(
    at_s: Callable[[float], None],
) -> None:
    watch, ends = Watch(), [None]
    watch.follow(lambda: Moment("playing", None, 5 * 10**9, ends[0], 0))  # type: ignore[arg-type]
    at_s(14)
    assert "--until" not in watch.lines(80)[1]
    at_s(16)
    assert watch.lines(80)[1] == "5.00 s virtual  16 s here  --until 1h would end it there"
    (said,) = watch.endless()
    assert said.startswith("Still running after 16 s, 5.00 s virtual, no end in sight: Ctrl-C ")
    assert said.endswith(" --until 1h would end it there.")
    ends[0] = 50 * 10**9  # type: ignore[call-overload]
    assert "--until" not in watch.lines(80)[1]
    assert watch.endless() == []


def test_in_a_pipe_it_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("raysim.cli.watch.ENDLESS_S", 0.05)
    watch = Watch()
    watch.follow(lambda: Moment("playing", None, 5 * 10**9))
    for shown in (True, False):
        with watching(watch, shown=shown):
            time.sleep(0.2)
        assert capsys.readouterr().err.count("no end in sight") == shown


def test_spans_as_people_say_them() -> None:
    assert [span(s) for s in (0.4, 59.4, 190, 7500)] == [
        "0 s", "59 s", "3 min 10 s", "2 h 05 min",
    ]  # fmt: skip
