"""Where programs and libraries meet: one waits for a script, the other runs a user's function.

Real counterpart: none; in Ray both are Python in one process. A library (``raylibs``) is scripts
of a core worker; a program's own functions need a fiber of that worker's process to run in.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from raysim.rayapi.calls import this_core, this_fiber
from raysim.rayapi.execution import ProcessExit, computes_on, gpu_indices, show_gpus
from raysim.rayapi.failures import task_error
from raysim.rayapi.fibers import HUB, Fiber
from raysim.rayapi.process_state import ProcessState
from raysim.rayapi.session import Session
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import WAITS, Ask, Driver, Script, drive


def play(script: Callable[[CoreProcess], Script]) -> Any:
    """Run a library's script in the process of the program that calls; what it returns."""
    fiber = this_fiber()
    core = this_core(fiber)
    fiber.settle()
    return fiber.block(lambda then: drive(core, script, then))


def session_here() -> Session:
    """The session of the program that calls."""
    return this_fiber().process.session


def state_of(session: Session, process: CoreProcess) -> ProcessState:
    """The memory of a library's worker."""
    options = SimpleNamespace(runtime_env=None)
    spec: Any = SimpleNamespace(job_id=process.job_id, options=options)
    return session.process_of(process, spec)


def on_gpus(name: str, *, only_answers: bool = True) -> None:
    """In a fiber of a library's worker: the program's code has the GPUs that Ray has given it."""
    fiber = this_fiber()
    held = this_core(fiber).resource_ids
    show_gpus(fiber.process, gpu_indices(held))
    computes_on(fiber, held, name, only_answers=only_answers)


def fiber_of(
    state: ProcessState, main: Callable[[], Any], done: Callable[[Any], object], name: str
) -> Fiber:
    """A thread of a library's worker that runs the program's code; ``done(value or TaskError)``."""

    def ended(fiber: Fiber) -> None:
        value = fiber.result
        error, fiber.error = fiber.error, None
        if isinstance(error, ProcessExit):
            end_process(state, error)
            return
        if error is not None and not isinstance(error, SystemExit):
            value = task_error(error, name, pid=state.pid, ip=state.ip)
        assert state.core is not None, f"{name} ran in no process"
        state.core.after(fiber.lead_ns, done, value)

    return Fiber(state, None, main, ended, name)


def end_process(state: ProcessState, exit_: ProcessExit) -> None:
    """The program's code has left its worker for good."""
    assert state.core is not None, "a library's worker is a process"
    state.session.env.launcher.kill(state.core.me.worker_id, reason=exit_.reason)


def in_fiber(state: ProcessState, main: Callable[[], Any], name: str) -> Ask:
    """For a script: run the program's function; its value, or a TaskError."""

    def begin(d: Driver) -> Any:
        fiber = fiber_of(state, main, d.resume, name)
        d.process.after(d.take_lead(), lambda _: fiber.start())
        return WAITS

    return Ask(begin)


def hand_over(then: Callable[[Any], object], value: Any) -> None:
    """From a fiber: call the simulation's side once no program runs."""
    fiber = HUB.current
    assert fiber is not None, "handed over by no program"
    assert fiber.process.core is not None, "handed over by a program without Ray"
    fiber.process.core.after(0, then, value)
