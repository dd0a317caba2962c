"""Scripts: programs and tasks written as generator functions.

Real counterpart: the user's Python functions. A script is a generator function of the process it
runs in; it yields what it asks for and is resumed with the answer:

    def main(process):
        refs = yield submit(options)
        values = yield get(refs)
        yield sleep(1_000_000)
        return [Payload(8)]

``drive(process, main)`` runs one in a driver, ``script(fn)`` makes one the body of a task or of an
actor's method (``fn(running)``: it finds arguments in ``running.args``). Calls cost the program's
thread what ``RayCosts`` says; it runs ahead of the clock until it has to wait. A process may run
several at once, as threads or asyncio tasks do: ``spawn`` starts one more.

Not modelled: time that the program's own statements take; ``compute`` says that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.running import RunningTask
from raysim.raycore.tasks import Body, TaskError

Script = Generator["Ask", Any, Any]


class Ask:
    """What a script yields: something to do, whose answer it is resumed with."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Driver], object]) -> None:
        self.begin = begin


class Driver:
    """Runs one script."""

    __slots__ = ("lead_ns", "process", "running", "script", "stopped", "then")

    def __init__(
        self,
        process: CoreProcess,
        script: Script,
        then: Callable[[Driver, Any], object],
        running: RunningTask | None = None,
    ) -> None:
        self.process = process
        self.script = script
        self.then = then
        self.running = running
        self.lead_ns = 0
        self.stopped = False

    def stop(self) -> None:
        """The task is cancelled: the script ends where it waits."""
        self.stopped = True
        self.script.close()
        assert self.running is not None, "only a task can be cancelled"
        self.running.fail(TaskError("TASK_CANCELLED"))

    def resume(self, answer: Any = None) -> None:
        """Go on until the script waits for something that is not here."""
        send = self.script.send
        if self.stopped:
            return
        while True:
            try:
                ask = send(answer)
            except StopIteration as end:
                self.then(self, end.value)
                return
            answer = ask.begin(self)
            if answer is WAITS:
                return

    def slept(self, _: object = None) -> None:
        """Time has passed."""
        self.resume()

    def compute(self, work: tuple[float, float]) -> None:
        """(Seconds, threads) on the cores, now that the clock is there."""
        if not self.stopped:
            self.process.compute(work[0], self.resume, width=work[1])

    def take_lead(self) -> int:
        """What the program has run ahead, handed to a call that waits."""
        lead_ns, self.lead_ns = self.lead_ns, 0
        return lead_ns

    @property
    def parent(self) -> Any:
        """The task the script is."""
        return self.running.spec if self.running is not None else None


WAITS = object()
"""The answer will come later."""


def drive(
    process: CoreProcess,
    script: Callable[[Any], Script],
    then: Callable[[Any], object] | None = None,
) -> None:
    """Run a script in a driver; ``then(what it returns)``."""
    Driver(process, script(process), _End(then)).resume()


class _End:
    __slots__ = ("then",)

    def __init__(self, then: Callable[[Any], object] | None) -> None:
        self.then = then

    def __call__(self, _driver: Driver, value: Any) -> None:
        if self.then is not None:
            self.then(value)


def script(fn: Callable[[Any], Script]) -> Body:
    """A body that runs ``fn(running)``; what it returns is the task's returns, or its error."""

    def body(running: RunningTask) -> None:
        driver = Driver(running.worker, fn(running), finish_task, running)
        running.on_cancel = driver.stop
        driver.resume()

    body.__name__ = fn.__name__
    return body


def finish_task(driver: Driver, value: Any) -> None:
    """End the task that a script is, with what the script returned."""
    running = driver.running
    assert running is not None, "a task's script without its task"
    if running.ended:
        return
    if isinstance(value, TaskError):
        running.fail(value, lead_ns=driver.take_lead())
    else:
        running.finish(value or (), lead_ns=driver.take_lead())


def spawn(child: Script, then: Callable[[Any], object] | None = None) -> Ask:
    """``threading.Thread`` or ``create_task``: run another script beside; ``then(its value)``.

    It begins at the spawning script's instant, belongs to no task and ends with the process.
    """

    def begin(d: Driver) -> Any:
        beside = Driver(d.process, child, _End(then))
        d.process.after(d.lead_ns, beside.slept)

    return Ask(begin)
