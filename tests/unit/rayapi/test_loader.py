"""Scripts run as they are; the world is put back; what is not emulated says so."""

from __future__ import annotations

import os
import random
import sys
import threading

import numpy as np
import pytest

from raysim.rayapi.unsupported import NotEmulatedError
from tests.rayapi_parts import printed, run
from tests.raycore_parts import ray_cluster


def write(folder, text: str, name: str = "script.py"):
    path = folder / name
    path.write_text(text)
    return path


def test_a_script_has_its_name_its_arguments_and_its_neighbours(tmp_path) -> None:
    write(tmp_path, "def double(x):\n    return 2 * x\n", "neighbour.py")
    script = write(
        tmp_path,
        "import sys, ray\nfrom neighbour import double\n"
        "print(__name__, sys.argv[1:], ray.get(ray.remote(double).remote(4)))\n",
    )
    assert printed(script, argv=("--fast",)) == ["__main__ ['--fast'] 8"]
    assert "neighbour" not in sys.modules


def test_every_process_has_its_own_globals(tmp_path) -> None:
    script = write(
        tmp_path,
        "import ray\ncount = 0\nclass Box:\n    n = 0\n"
        "@ray.remote\ndef bump():\n    global count\n    count += 1\n    Box.n += 1\n"
        "    return count, Box.n\n"
        "ray.init(num_cpus=1)\nprint(ray.get([bump.remote() for _ in range(3)]), count, Box.n)\n",
    )
    assert printed(script) == ["[(1, 1), (2, 2), (3, 3)] 0 0"]


def test_workers_output_says_whose_it_is(tmp_path) -> None:
    script = write(
        tmp_path,
        "import ray\n@ray.remote\ndef speak():\n    print('hello')\n"
        "ray.get(speak.remote())\nprint('end')\n",
    )
    first, last = printed(script)
    assert first.startswith("(speak pid=100")
    assert first.endswith(") hello")
    assert last == "end"


def test_nothing_is_left_behind() -> None:
    before = (os.getpid, os.kill, threading.Thread.start, dict(os.environ), list(sys.meta_path))
    names = {name for name in sys.modules if name.split(".")[0] == "ray"}
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 / 0)
    after = (os.getpid, os.kill, threading.Thread.start, dict(os.environ), list(sys.meta_path))
    assert before == after
    assert {name for name in sys.modules if name.split(".")[0] == "ray"} == names


@pytest.mark.parametrize(
    "use",
    [
        "import ray.llm", "from ray.serve import task_consumer", "import ray; ray.java_function",
        "import ray; ray.util.joblib", "from ray.util.dask import ray_dask_get",
        "import ray; ray.init(local_mode=True)",
        "import threading; threading.Thread(target=print).start()",
        "import ray.tune.schedulers.resource_changing_scheduler",
        "import subprocess; subprocess.run(['ray', 'stop'])", "import os; os.system('ray start')",
        "import ray; ray.util.accelerators.tpu",
    ],
)  # fmt: skip
def test_what_is_not_emulated_is_named(tmp_path, use: str) -> None:
    with pytest.raises(NotEmulatedError, match="is not emulated by raysim"):
        printed(write(tmp_path, use))


def test_other_commands_are_run(tmp_path) -> None:
    use = "import ray, subprocess\nray.init()\nprint(subprocess.check_output(['echo', 'ray']))\n"
    assert printed(write(tmp_path, use)) == ["b'ray\\n'"]


def test_whoever_looks_through_all_modules_is_not_refused(tmp_path) -> None:
    use = (
        "import sys, ray.experimental, ray.tune.stopper\n"
        "there = [name for name, m in list(sys.modules.items()) if hasattr(m, '__nothing__')]\n"
        "print([name for name in there if name.startswith('ray')])\n"  # torch.ops has everything
    )
    assert printed(write(tmp_path, use)) == ["[]"]


def test_metrics_are_checked_as_ray_checks_them() -> None:
    def main():
        import ray
        from ray.util.metrics import Counter, Gauge, Histogram

        counter = Counter("seen", tag_keys=("kind",)).set_default_tags({"kind": "a"})
        counter.inc()
        copy = ray.get(ray.remote(lambda c: c).remote(counter))
        wrong = []
        for call in (
            lambda: counter.inc(0), copy.inc, lambda: Gauge("now").set("1"),
            lambda: Histogram("h"), lambda: Histogram("h", boundaries=[0.0]),
            lambda: counter.set_default_tags({"other": "b"}),
        ):  # fmt: skip
            try:
                call()
            except (TypeError, ValueError) as error:
                wrong.append(str(error).split(",")[0])
        return counter.info["default_tags"], copy.info["default_tags"], wrong

    assert run(main) == (
        {"kind": "a"}, {}, ["value must be >0", "Missing value for tag key(s): kind.",
        "value must be int or float",
        ("boundaries argument should be provided when using the Histogram class. e.g."),
        "Invalid `boundaries` argument at index 0",
        "Unrecognized tag key other."],
    )  # fmt: skip


def test_unknown_names_are_unknown(tmp_path) -> None:
    with pytest.raises(AttributeError):
        printed(write(tmp_path, "import ray\nray.no_such_thing"))
    with pytest.raises(ModuleNotFoundError):
        printed(write(tmp_path, "import ray.no_such_module"))


def test_a_cluster_that_is_there_keeps_its_size() -> None:
    def main():
        import ray

        ray.init(num_cpus=64)
        return ray.cluster_resources()["CPU"], len(ray.nodes())

    assert run(main, ray_cluster(3, cpus=2)) == (6.0, 3)


def test_ray_can_be_started_twice() -> None:
    def main():
        import ray

        seen = []
        for cpus in (2, 3):
            ray.init(num_cpus=cpus)
            seen.append(ray.cluster_resources()["CPU"])
            ray.shutdown()
        return seen, ray.is_initialized()

    assert run(main) == ([2.0, 3.0], False)


def test_a_process_can_end_itself() -> None:
    def main():
        import ray

        @ray.remote(max_retries=0)
        def leave():
            os._exit(1)

        @ray.remote
        def pid():
            return os.getpid()

        with pytest.raises(ray.exceptions.WorkerCrashedError):
            ray.get(leave.remote())
        return ray.get(pid.remote()) != os.getpid()

    assert run(main)


def test_what_a_program_draws_follows_from_the_seed() -> None:
    def main():
        import ray

        def draws():
            return random.random(), float(np.random.rand())  # noqa: NPY002 - what old programs do

        ray.init()
        return draws(), ray.get(ray.remote(draws).remote())

    random.seed(5)
    first, again, other = (run(main, ray_cluster(seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert random.random() == random.Random(5).random()
