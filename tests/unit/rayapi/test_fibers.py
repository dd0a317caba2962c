"""Fibers: greenlets are used again, and one program sees nothing of another's."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import weakref
from contextvars import ContextVar

from greenlet import greenlet

import raysim.rayapi.api as ray
from raysim.rayapi.loader import run_program
from tests.rayapi_parts import on_demand, run

WORD: ContextVar[str] = ContextVar("word", default="nothing")


def greenlets() -> int:
    return sum(isinstance(thing, greenlet) for thing in gc.get_objects())


def test_a_thousand_tasks_take_as_many_greenlets_as_run_at_once() -> None:
    def main() -> int:
        ray.init(num_cpus=2)
        no_op = ray.remote(lambda: None)
        before = greenlets()
        ray.get([no_op.remote() for _ in range(1_000)])
        return greenlets() - before

    assert run(main) <= 2


def test_who_unwinds_a_program_s_stack_does_not_come_to_its_end() -> None:
    """As torch does for each error: 64 frames, and one that it skips (``c10::get_backtrace``)."""
    frames = 65

    def last_unwound() -> int:
        """Where the last eight of them return to: so few places where one function calls itself."""
        found = (ctypes.c_void_p * frames)()
        ctypes.CDLL(None).backtrace(found, frames)
        return len(set(found[-8:]))

    def main() -> list[int]:
        ray.init(num_cpus=1)
        return [last_unwound(), ray.get(ray.remote(last_unwound).remote())]

    assert max(run(main)) <= 2


def swap(word: str) -> str:
    before = WORD.get()
    WORD.set(word)
    return before


def test_what_a_task_sets_in_its_context_ends_with_it() -> None:
    def main() -> list[str]:
        ray.init(num_cpus=1)
        WORD.set("driver")
        remote = ray.remote(swap)
        return [*(ray.get(remote.remote(str(i))) for i in range(3)), WORD.get()]

    assert run(main) == ["nothing"] * 3 + ["driver"]


def test_every_process_has_an_environment_of_its_own() -> None:
    def look(name: str) -> str | None:
        return os.environ.get(name)

    class Setter:
        def set(self, name: str, value: str) -> None:
            os.environ[name] = value

        def look(self, name: str) -> str | None:
            return look(name)

    def main() -> list[str | None]:
        os.environ["RAYSIM_BEFORE"] = "driver's"
        ray.init(num_cpus=2)
        os.environ["RAYSIM_AFTER"] = "driver's"
        one, two = (ray.remote(Setter).remote() for _ in range(2))
        ray.get(one.set.remote("RAYSIM_ONE", "its own"))
        seen = [ray.get(actor.look.remote("RAYSIM_ONE")) for actor in (one, two)]
        task = ray.remote(look)
        seen += [ray.get(task.remote(f"RAYSIM_{when}")) for when in ("BEFORE", "AFTER")]
        return [*seen, look("RAYSIM_ONE")]

    assert run(main) == ["its own", None, "driver's", None, None]
    assert not [name for name in os.environ if name.startswith("RAYSIM_")]
    child = "import os; print([name for name in os.environ if name.startswith('RAYSIM_')])"
    said = subprocess.run([sys.executable, "-c", child], capture_output=True, check=True, text=True)
    assert said.stdout == "[]\n"


def test_nothing_of_a_session_stays_when_it_is_over() -> None:
    """Its stores hold what the program put: gigabytes, in runs one after the other."""

    def main() -> None:
        ray.init(num_cpus=2)
        no_op = ray.remote(lambda: None)
        ray.get([no_op.remote() for _ in range(3)])

    session = weakref.ref(run_program(main, on_demand())[1])
    gc.collect()
    assert session() is None
