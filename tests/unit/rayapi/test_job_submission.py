"""``ray.job_submission`` on the emulator, as programs use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysim.rayapi.job_manager import script_main
from raysim.rayapi.unsupported import NotEmulatedError
from tests.rayapi_parts import run
from tests.raycore_parts import ray_cluster

SQUARES = """
import os, sys, time
import ray

ray.init()

@ray.remote
def square(x):
    time.sleep(2)
    return x * x

print(__name__, sys.argv[1:], os.environ.get("TEAM"))
print(sum(ray.get([square.remote(i) for i in range(int(sys.argv[1]))])))
"""
Said = tuple[Any, ...]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "squares.py").write_text(SQUARES)
    (tmp_path / "fails.py").write_text("import ray\nray.init()\nprint('here')\n1 / 0\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "stubborn.py").write_text(
        "import time, ray\nray.init()\n"
        "while True:\n    try:\n        time.sleep(1000)\n    except SystemExit:\n        pass\n"
    )
    (tmp_path / "sleeps.py").write_text("import time, ray\nray.init()\ntime.sleep(1000)\n")
    return tmp_path


def until_over(client: Any, job: str) -> Any:
    import time

    while not client.get_job_status(job).is_terminal():
        time.sleep(0.5)
    return client.get_job_info(job)


def submitting(folder: Path, then: Any, **options: Any) -> Any:
    """What ``then(client, submit)`` returns in a driver of a two-node cluster."""

    def main() -> Any:
        from ray.job_submission import JobSubmissionClient

        client = JobSubmissionClient("http://127.0.0.1:8265")

        def submit(command: str, **more: Any) -> Any:
            env = {"working_dir": str(folder), **more.pop("runtime_env", {})}
            return client.submit_job(entrypoint=command, runtime_env=env, **more)

        return then(client, submit)

    return run(main, ray_cluster(2, check=True, **options))


def test_a_job_is_pending_then_running_then_succeeded(folder: Path) -> None:
    def main(client: Any, submit: Any) -> Said:
        import time

        job = submit("TEAM=blue python -u squares.py 8", submission_id="eight")
        first = client.get_job_status(job)
        time.sleep(4)
        second = client.get_job_status(job)
        return first, second, until_over(client, job), client.get_job_logs(job)

    first, second, info, logs = submitting(folder, main)
    assert (first, second, info.status) == ("PENDING", "RUNNING", "SUCCEEDED")
    assert logs.splitlines() == ["__main__ ['8'] blue", "140"]
    assert info.driver_exit_code == 0
    # its directory is set up twice (1 s each), supervisor, interpreter and eight workers start on
    # four cores (about 5 s), then one wave of eight tasks of 2 s
    assert 7_000 < info.end_time - info.start_time < 10_000
    assert info.submission_id == "eight"


def test_a_driver_that_raises_fails_its_job_and_says_where(folder: Path) -> None:
    info = submitting(folder, lambda c, s: until_over(c, s("python fails.py")))
    assert (info.status, info.error_type) == ("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR")
    assert "exit code 1" in info.message
    assert "ZeroDivisionError" in info.message
    assert "raysim" not in info.message


def test_an_exit_code_is_kept(folder: Path) -> None:
    info = submitting(folder, lambda c, s: until_over(c, s("python exits.py")))
    assert (info.status, info.driver_exit_code) == ("FAILED", 3)


@pytest.mark.parametrize(("script", "took_s"), [("sleeps.py", 0.2), ("stubborn.py", 3.2)])
def test_stop_is_sigterm_and_after_three_seconds_sigkill(
    folder: Path, script: str, took_s: float
) -> None:
    def main(client: Any, submit: Any) -> Said:
        import time

        job = submit(f"python {script}")
        time.sleep(10)
        stopped_s = time.time()
        asked = client.stop_job(job)
        info = until_over(client, job)
        return asked, info, info.end_time / 1e3 - stopped_s, client.stop_job(job)

    asked, info, took, again = submitting(folder, main)
    assert (asked, info.status, again) == (True, "STOPPED", False)
    assert took == pytest.approx(took_s, abs=0.2)


def test_jobs_share_the_cluster_and_each_has_its_own_driver(folder: Path) -> None:
    def main(client: Any, submit: Any) -> Said:
        jobs = [submit(f"python squares.py {n}") for n in (16, 16, 2)]
        ends = [until_over(client, job).end_time for job in jobs]
        return ends, client.list_jobs()

    ends, listed = submitting(folder, main)
    assert [info.status for info in listed] == ["SUCCEEDED"] * 3
    assert len({info.job_id for info in listed}) == 3
    assert max(ends) - min(ends) > 1_000  # they wait for each other's CPUs


def test_what_has_ended_can_be_deleted_and_ids_are_taken_once(folder: Path) -> None:
    def main(client: Any, submit: Any) -> Said:
        job = submit("python exits.py", submission_id="one")
        said = []
        for call in (
            lambda: client.delete_job(job),
            lambda: submit("python exits.py", submission_id="one"),
            lambda: client.get_job_status("another"),
        ):
            with pytest.raises((RuntimeError, ValueError)) as caught:
                call()
            said.append(str(caught.value))
        until_over(client, job)
        return said, client.delete_job(job), client.list_jobs()

    said, deleted, left = submitting(folder, main)
    assert "non-terminal state PENDING" in said[0]
    assert "already exists" in said[1]
    assert "does not exist" in said[2]
    assert (deleted, left) == (True, [])


def test_an_entrypoint_that_holds_resources_waits_for_them(folder: Path) -> None:
    def main(client: Any, submit: Any) -> Said:
        import time

        first = submit("python sleeps.py", entrypoint_num_cpus=4)
        more = submit("python sleeps.py", entrypoint_num_cpus=4)
        time.sleep(10)
        none = submit("python sleeps.py", entrypoint_num_cpus=3)
        time.sleep(30)
        states = [str(client.get_job_status(job)) for job in (first, more, none)]
        info = until_over(client, none)
        return states, info

    states, info = submitting(folder, main)
    assert states == ["RUNNING", "RUNNING", "PENDING"]
    assert (info.status, info.error_type) == ("FAILED", "JOB_SUPERVISOR_ACTOR_START_TIMEOUT")
    assert info.end_time - info.start_time == pytest.approx(900_000, abs=2_000)


def test_other_commands_are_refused_by_name(tmp_path: Path) -> None:
    for command in ("bash run.sh", "python -m module", "python", ""):
        with pytest.raises(NotEmulatedError, match="entrypoint"):
            script_main(command, tmp_path)
    with pytest.raises(FileNotFoundError):
        script_main("python absent.py", tmp_path)
