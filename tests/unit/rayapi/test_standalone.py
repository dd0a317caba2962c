"""``import raysim.rayapi as ray`` under plain ``python``, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HEAD = "import time\nimport raysim.rayapi as ray\n"
PROGRAM = (
    HEAD
    + """
@ray.remote
def square(x):
    time.sleep(0.5)
    return x * x

@ray.remote
class Counter:
    def __init__(self):
        self.n = 0

    def add(self, k):
        self.n += k
        return self.n

ray.init()
began = time.perf_counter()
print(sum(ray.get([square.remote(i) for i in range(40)])), time.perf_counter() - began)
counter = Counter.remote()
print(ray.get([counter.add.remote(i) for i in range(5)]))
time.sleep(1000)
ready, rest = ray.wait([square.remote(1)], timeout=0.1)
print(len(ready), len(rest), ray.cluster_resources()["CPU"], time.time(), os.getpid())
ray.shutdown()
print(time.perf_counter() - began, ray.is_initialized())
"""
).replace("import time", "import os, time", 1)
CLUSTER = "nodes: 3\nnode: m5.2xlarge\n"


def python(
    folder: Path, *command: str, fails: bool = False, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it here, with raysim on the path."""
    root = Path(__file__).resolve().parents[3]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "RAYSIM_"))}
    ended = subprocess.run(
        [sys.executable, *command], cwd=folder, text=True, capture_output=True, check=False,
        env={**kept, "PYTHONPATH": str(root), "RAYSIM_COMPUTE": "declared", **(environment or {})},
    )  # fmt: skip
    assert bool(ended.returncode) is fails, ended.stderr
    return ended


def prints(folder: Path, text: str, **environment: str) -> list[str]:
    (folder / "main.py").write_text(text, encoding="utf-8")
    return python(folder, "main.py", environment=environment).stdout.splitlines()


def raysim_run(folder: Path, *flags: str) -> list[str]:
    command = ("-m", "raysim", "run", "main.py", "--compute", "declared", "--quiet", *flags)
    *said, verdict = python(folder, *command).stderr.splitlines() or [""]
    return [*said, verdict]


def test_values_and_times_are_those_of_raysim_run(tmp_path: Path) -> None:
    alone = prints(tmp_path, PROGRAM)
    assert alone == raysim_run(tmp_path)
    assert alone[0].startswith("20540 1.50")  # 40 tasks of 0.5 s on 16 CPUs


def test_a_cluster_file_gives_a_bigger_one(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    expected = prints(tmp_path, PROGRAM, RAYSIM_CLUSTER="cluster.yaml")
    assert expected == raysim_run(tmp_path, "--cluster", "cluster.yaml")
    named = PROGRAM.replace("ray.init()", 'ray.init(address="raysim://cluster.yaml")')
    assert prints(tmp_path, named) == expected
    assert " 24.0 " in expected[2]


def test_a_wrong_cluster_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(PROGRAM, encoding="utf-8")
    said = python(
        tmp_path, "main.py", fails=True, environment={"RAYSIM_CLUSTER": "none.yaml"}
    ).stderr
    assert "none.yaml" in said.splitlines()[-1]


def test_init_says_what_the_node_has_and_the_first_use_is_an_init(tmp_path: Path) -> None:
    text = HEAD + (
        "assert not ray.is_initialized()\n"
        "f = ray.remote(lambda: 7)\n"
        "print(ray.get(f.remote()), ray.cluster_resources()['CPU'])\n"
        "ray.shutdown()\n"
        "ray.init(num_cpus=2, num_gpus=1, resources={'disk': 3})\n"
        "found = ray.cluster_resources()\n"
        "print(found['CPU'], found['GPU'], found['disk'])\n"
        "began = time.time()\n"
        "g = ray.remote(num_gpus=1)(lambda: time.sleep(3600))\n"
        "ray.get([g.remote(), g.remote()])\n"
        "print(7200 < time.time() - began < 7203)\n"
    )
    assert prints(tmp_path, text) == ["7 16.0", "2.0 1.0 3.0", "True"]


def test_other_threads_have_the_machines_time_and_leaving_gives_it_back(tmp_path: Path) -> None:
    text = (
        "import threading\nreal, go = [], threading.Event()\n"
        + HEAD
        + "def look():\n    go.wait()\n    real.append(time.time())\n"
        "thread = threading.Thread(target=look)\nthread.start()\n"
        "before = time.time()\nray.init()\ntime.sleep(1e4)\ngo.set()\nthread.join()\n"
        "virtual = time.time()\n"
        "from raysim.rayapi import standalone\nstandalone.leave()\n"
        "print(real[0] - before < 60, time.time() - before < 60, virtual > 1767225600 + 1e4)\n"
        "import ray.exceptions\n"
    )
    (tmp_path / "ray").mkdir()  # what `ray` is outside of a session
    (tmp_path / "ray" / "__init__.py").touch()
    (tmp_path / "ray" / "exceptions.py").write_text("print('its own')\n", encoding="utf-8")
    assert prints(tmp_path, text) == ["True True True", "its own"]


def test_what_hangs_is_raised_where_it_waits(tmp_path: Path) -> None:
    text = HEAD + (
        "f = ray.remote(num_gpus=1)(lambda: 1)\n"
        "from raysim.rayapi.session import ProgramHangs\n"
        "try:\n    ray.get(f.remote())\n"
        "except ProgramHangs as error:\n    print(error.certain, str(error).splitlines()[-1])\n"
        "print(ray.is_initialized())\n"
        "print(ray.get(ray.remote(lambda: 2).remote()))\n"
    )
    assert prints(tmp_path, text) == ["True     ray.get(f.remote())", "False", "2"]


def test_an_error_of_the_program_is_as_in_python(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(HEAD + "ray.init()\nraise KeyError('x')\n", encoding="utf-8")
    assert python(tmp_path, "main.py", fails=True).stderr.endswith("KeyError: 'x'\n")
