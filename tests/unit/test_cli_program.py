"""The command line for Ray programs: run, the folder, and show from the folder alone."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from raysim.cli import main
from tests.unit.program_cases import CLUSTER, SQUARES, script

DECLARED = ["--compute", "declared"]
FRAMES = {"tasks", "actors", "objects", "nodes", "workers", "placement_groups", "state"}


@pytest.fixture(autouse=True)
def _a_hundred_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def ran(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with one run in ``done``."""
    script(in_tmp, SQUARES)
    Path("cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    command = ["run", "main.py", "--cluster", "cluster.yaml", *DECLARED, "-o", "done"]
    assert main([*command, "--", "48"]) == 0
    capsys.readouterr()
    return Path("done")


def test_run_takes_a_script_and_says_what_it_took_for_a_cluster(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(in_tmp, SQUARES)
    assert main(["run", "main.py", *DECLARED]) == 0
    out = capsys.readouterr().out
    assert out.startswith("10416\nFinished in ")
    assert "no --cluster given; taken is one cpu-16 (16 vCPUs, 64 GiB, no GPU)" in out


def test_the_folder_has_what_the_next_tool_needs(ran: Path) -> None:
    assert {p.name for p in ran.iterdir()} == {
        "report.html", "summary.json", "summary.txt", "scenario.resolved.yaml", "trace.pftrace",
        "timeline.json", "output.txt", "frames",
    }  # fmt: skip
    assert {p.stem for p in (ran / "frames").iterdir()} == FRAMES
    events = json.loads((ran / "timeline.json").read_text())
    assert sum(event["cat"] == "task::square" for event in events) == 48
    page = (ran / "report.html").read_text()
    assert page.count('<figure class="fig lines"') == 2
    assert page.count('<div class="lane">') == 2
    assert "http://" not in page
    assert "https://" not in page


def test_the_resolved_scenario_replays_the_run(ran: Path) -> None:
    assert main(["run", str(ran / "scenario.resolved.yaml"), "-q", "-o", "again"]) == 0
    assert (ran / "summary.json").read_text() == Path("again/summary.json").read_text()


def test_no_trace_leaves_only_the_report(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script(in_tmp, SQUARES)
    assert main(["run", "main.py", *DECLARED, "-q", "--no-trace", "-o", "done"]) == 0
    assert {p.name for p in Path("done").iterdir()} == {
        "report.html", "summary.json", "summary.txt", "scenario.resolved.yaml",
    }  # fmt: skip
    capsys.readouterr()
    assert main(["show", "done", "--at", "1s"]) == 2
    assert "run it without --no-trace" in capsys.readouterr().err


def test_json_stands_alone_on_standard_output(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(in_tmp, SQUARES)
    assert main(["run", "main.py", *DECLARED, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["tasks"]["total"] == 32
    assert err == "10416\n"


def test_show_prints_the_report_again(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(ran)]) == 0
    assert capsys.readouterr().out == (ran / "summary.txt").read_text()


def test_show_at_is_ray_status(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(ran), "--at", "3s"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("======== Autoscaler status: 0:00:03 ========\nNode status\n")
    assert " 2 workers\n" in out
    assert " 16.0/16.0 CPU\n" in out
    assert " {'CPU': 1.0}: 32+ pending tasks/actors" in out


def test_show_table_is_ray_list(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(ran), "--table", "tasks", "--at", "3s"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:7] == [
        "======== List: 0:00:03 ========", "Stats:", "-" * 30, "Total: 48", "", "Table:", "-" * 30,
    ]  # fmt: skip
    assert lines[7].split()[:4] == ["TASK_ID", "ATTEMPT_NUMBER", "NAME", "STATE"]
    # Of 16 CPUs: one task has just ended.
    assert sum(" RUNNING " in line for line in lines) == 15


def test_show_why_says_what_a_task_waits_for(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(ran), "--why", "square", "--at", "3s"]) == 0
    assert "square (task" in capsys.readouterr().out
    assert main(["show", str(ran), "--why", "cube"]) == 2
    assert "no such task" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--at", "soon"], "--at soon:"),
        (["--at", "3h"], "--at 3h: the run ends at"),
        (["--table", "lanes"], "--table lanes: 'lanes' is not one of tasks, actors"),
    ],
)
def test_show_refuses_what_is_not_there(
    ran: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert main(["show", str(ran), *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_program_that_takes_no_time_has_its_report(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(in_tmp, "print('hello')\n")
    assert main(["run", "main.py", *DECLARED]) == 0
    out = capsys.readouterr().out
    assert out.startswith("hello\nFinished without a call to Ray")
    assert "0 kWh with cooling" in out


def test_an_application_that_nobody_asks_has_not_failed(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "from ray import serve\n@serve.deployment\ndef one():\n    return 1\n"
    script(in_tmp, text + "serve.run(one.bind())\n")
    assert main(["run", "main.py", *DECLARED, "-q"]) == 0
    assert "no requests came" in capsys.readouterr().out


def test_an_exception_is_printed_as_python_does(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(in_tmp, "import ray\nray.init()\nraise KeyError('a')\n")
    assert main(["run", "main.py", *DECLARED, "-q"]) == 1
    out, err = capsys.readouterr()
    expected = 'Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n'
    assert err == expected + "    raise KeyError('a')\nKeyError: 'a'\n"
    assert out.startswith("Failed after ")


def test_what_is_not_emulated_exits_with_two(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(in_tmp, "import ray\nray.init()\nimport ray.llm\n")
    assert main(["run", "main.py", *DECLARED]) == 2
    err = capsys.readouterr().err
    assert err.startswith("main.py:3")
    assert "ray.llm is not emulated by raysim." in err
    assert err.count("\n") == 1


LOCAL = "provider: {type: local, head_ip: 10.0.0.1, worker_ips: [10.0.0.2]}\n"
P2 = """\
provider: {type: aws}
available_node_types: {ray.head.default: {node_config: {InstanceType: p2.xlarge}}}
"""


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (None, "none.yaml   no such file"),
        ("nodes: 2\nnode: cpu-31\n", "cluster.yaml:2:7   cluster.node: "),
        ("nodes: 2\nnodde: cpu-32\n", "cluster.yaml:2:1   unknown key 'nodde'"),
        ("cluster:\n  nodes: 0\n  node: cpu-32\n", "cluster.yaml:2:10"),
        ("- 1\n", "cluster.yaml   expected a mapping"),
        (
            "apiVersion: v1\nkind: Ingress\n",
            "RayJob or RayService (kind: Ingress)",
        ),
        (P2, "unknown node 'p2.xlarge'"),
    ],
)
def test_a_wrong_cluster_file_is_said_with_its_position(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], cluster: str | None, said: str
) -> None:
    script(in_tmp, SQUARES)
    name = "none.yaml" if cluster is None else "cluster.yaml"
    if cluster is not None:
        Path(name).write_text(cluster, encoding="utf-8")
    assert main(["run", "main.py", "--cluster", name, *DECLARED]) == 2
    assert said in capsys.readouterr().err


def test_missing_hardware_can_be_given_on_the_command_line(in_tmp: Path) -> None:
    script(in_tmp, SQUARES)
    Path("cluster.yaml").write_text(LOCAL, encoding="utf-8")
    given = [f"--set=cluster.hardware.{name}={{node: cpu-8}}" for name in ("head", "worker")]
    assert main(["run", "main.py", "--cluster", "cluster.yaml", *DECLARED, *given, "-q"]) == 0


PODS = """\
apiVersion: ray.io/v1
kind: RayCluster
spec:
  headGroupSpec:
    template: {spec: {containers: [{name: ray, resources: {limits: {cpu: 2, memory: 4Gi}}}]}}
  workerGroupSpecs:
  - groupName: gpus
    replicas: 1
    template: {spec: {containers: [{name: ray, resources: {limits: {nvidia.com/gpu: 1}}}]}}
"""


def test_a_manifest_that_names_no_machines_runs_and_says_what_was_taken(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The head's pod says its size; nothing says which GPU, so that is a guess, and a warning."""
    script(in_tmp, SQUARES)
    Path("cluster.yaml").write_text(PODS, encoding="utf-8")
    assert main(["run", "main.py", "--cluster", "cluster.yaml", *DECLARED]) == 0
    captured = capsys.readouterr()
    flat = " ".join((captured.out + captured.err).split())
    assert "gpus: the file does not say what node it is; taken is hgx-h100-8 with 1 GPUs" in flat
    given = "--set=cluster.hardware.gpus={node: l4-1}"
    assert main(["run", "main.py", "--cluster", "cluster.yaml", *DECLARED, given]) == 0
    captured = capsys.readouterr()
    assert "taken is hgx-h100-8" not in " ".join((captured.out + captured.err).split())


SCENARIO = """\
cluster: {nodes: 2, node: m5.large}
jobs:
  - script: {path: main.py, compute: declared}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SCENARIO.replace("main.py", "mine.py"), ":3:20   jobs.0.script.path: mine.py: no such"),
        (SCENARIO.replace("declared", "fast.csv"), ":3:38   jobs.0.script.compute: fast.csv:"),
        (
            SCENARIO + "faults:\n  - {at: 5s, fail_node: 2}\n",
            ":5:25   faults.0.fail_node: there is",
        ),
        (SCENARIO + "faults:\n  - {at: 5s}\n", ":5:5   faults.0: give one thing"),
        (SCENARIO + "faults:\n  - {at: 5, fail_node: 1}\n", ":5:10   faults.0.at: needs a unit"),
        (SCENARIO + "ray: {config: {gcs_storag: redis}}\n", ":4:16   ray.config.gcs_storag: "),
        (SCENARIO + "ray: {object_store_memory: lots}\n", ":4:28   ray.object_store_memory: "),
        (SCENARIO + "targets: {mfu: '>= 1 %'}\n", ":4:16   targets.mfu: "),
        (SCENARIO + "until: never\n", ":4:8   until: "),
    ],
)
def test_a_wrong_scenario_is_said_with_its_position(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    script(in_tmp, SQUARES)
    Path("scenario.yaml").write_text(text, encoding="utf-8")
    assert main(["run", "scenario.yaml"]) == 2
    assert f"scenario.yaml{said}" in capsys.readouterr().err


def test_preemption_without_a_notice_takes_two_minutes(in_tmp: Path) -> None:
    from raysim.scenario.load import load
    from raysim.scenario.program import ProgramScenario

    script(in_tmp, SQUARES)
    text = SCENARIO + "faults:\n  - {at: 5s, preempt: 1}\n"
    Path("scenario.yaml").write_text(text, encoding="utf-8")
    scenario = load("scenario.yaml")
    assert isinstance(scenario, ProgramScenario)
    assert scenario.job.faults[0].notice_s == 120.0


def test_flags_go_into_a_scenario_of_a_program(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(in_tmp, SQUARES)
    Path("scenario.yaml").write_text(SCENARIO, encoding="utf-8")
    assert main(["run", "scenario.yaml", "-q", "--until", "2s", "-o", "a", "--", "5"]) == 0
    found = json.loads(Path("a/summary.json").read_text())
    assert found["run"]["virtual_seconds"] == 2.0
    assert found["program"]["args"] == ["5"]
    capsys.readouterr()
    assert main(["run", "scenario.yaml", "--cluster", "c.yaml"]) == 2
    assert "--cluster goes with a script" in capsys.readouterr().err


def test_check_prints_a_program_resolved(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script(in_tmp, SQUARES)
    Path("scenario.yaml").write_text(SCENARIO, encoding="utf-8")
    assert main(["check", "scenario.yaml"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# main.py, compute declared; 2 x m5.large\n")
    assert "node_speed: 1.0" in out
    assert main(["check", "--explain", "jobs.script.compute"]) == 0


def test_a_program_that_fails_before_time_passes_is_reported(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No time, so no average power; its own traceback is what matters."""
    script(in_tmp, "raise RuntimeError('no data')\n")
    Path("cluster.yaml").write_text("nodes: 1\nnode: hgx-h100-8\n", encoding="utf-8")
    assert main(["run", "main.py", "--cluster", "cluster.yaml", *DECLARED]) == 1
    captured = capsys.readouterr()
    assert "no data" in captured.out + captured.err
    assert "fault of raysim" not in captured.err


def test_a_module_that_is_not_here_is_told_with_the_way_out(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that the program needs, and one of its own that lies above it."""
    Path("mine").mkdir()
    for module, said in [
        ("no_such_package.inner", "(the program's own code really runs: install it beside raysim)"),
        ("mine.inner", f"(it is in {in_tmp.resolve()}: set PYTHONPATH={in_tmp.resolve()})"),
    ]:
        script(Path("mine"), f"import ray\nimport {module}\n")
        assert main(["run", "mine/main.py", *DECLARED, "-q"]) == 1
        assert said in " ".join(capsys.readouterr().out.split())


def test_packages_that_do_not_go_together_are_no_fault_of_raysim(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot import what it needs of another, here of numpy."""
    Path("packages/datasets").mkdir(parents=True)
    Path("packages/datasets/__init__.py").write_text("from numpy import gone\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(in_tmp / "packages"))
    Path("mine").mkdir()
    script(Path("mine"), "import ray\nimport datasets\n")
    assert main(["run", "mine/main.py", *DECLARED, "-q"]) == 1
    out, err = capsys.readouterr()
    assert "fault of raysim" not in err
    assert f"numpy {version('numpy')} is what is there)" in " ".join(out.split())


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("assert x < 0, 'negative only'", "AssertionError: negative only (in work)"),
        (
            "raise AssertionError('Torch not compiled with CUDA enabled')",
            "(in work) (the program's own code really runs, and this machine has no GPU",
        ),
    ],
)
def test_an_assertion_in_a_task_is_the_programs_own(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], raised: str, said: str
) -> None:
    """What ray.get raises then is an assertion too, but none of raysim's."""
    lines = [
        "import ray",
        "@ray.remote",
        "def work(x):",
        f"    {raised}",
        "ray.get(work.remote(3))",
    ]
    script(in_tmp, "\n".join(lines) + "\n")
    assert main(["run", "main.py", *DECLARED, "-q"]) == 1
    captured = capsys.readouterr()
    assert said in " ".join((captured.out + captured.err).split())
    assert "fault of raysim" not in captured.err
