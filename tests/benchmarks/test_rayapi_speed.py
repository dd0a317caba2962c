"""CPU time of Ray programs per task and per actor call, against what their parts cost.

    pytest tests/benchmarks/test_rayapi_speed.py -m benchmark --benchmark-enable -s

A burst of calls of a function that does nothing, and one ``get`` of all their results, on one node
of 64 CPUs, without a state log: submission, serialisation, core, execution, ``get``. What it costs
is told as a multiple of a pickled call of the same function (``pickle`` of the arguments and of
what comes back), measured in the same process right before; ratios, never gates.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

from raysim.rayapi.loader import run_program
from tests.raycore_parts import ray_cluster

pytestmark = pytest.mark.benchmark

CALLS = 20_000


def cpu_s(run: Callable[[], object], rounds: int = 3) -> float:
    """Best CPU seconds of a few rounds."""
    best = float("inf")
    for _ in range(rounds):
        start_s = process_time()
        run()
        best = min(best, process_time() - start_s)
    return best


process_time = time.process_time
"""Of this machine, also where programs see virtual time."""


def same(*args: Any) -> Any:
    return args[0] if args else None


def pickled_calls(args: tuple[Any, ...]) -> None:
    for _ in range(CALLS):
        pickle.loads(pickle.dumps(same(*pickle.loads(pickle.dumps(args, 5))), 5))


def burst(args: tuple[Any, ...], *, of_actor: bool) -> float:
    """CPU seconds of ``CALLS`` calls and a ``get``, once workers and functions are there."""

    def main() -> float:
        import raysim.rayapi.api as ray

        ray.init()
        actor = ray.remote(type("Same", (), {"same": lambda _, *args: same(*args)})).remote()
        call = actor.same if of_actor else ray.remote(same)
        ray.get([call.remote(*args) for _ in range(1_000)])
        return cpu_s(lambda: ray.get([call.remote(*args) for _ in range(CALLS)]))

    seconds: float = run_program(main, lambda _: ray_cluster(cpus=64, log=False))[0]
    return seconds


@pytest.mark.parametrize("args", [(), (1,), ([1, 2],)], ids=["nothing", "a number", "a list"])
@pytest.mark.parametrize("what", ["tasks", "actor calls"])
def test_a_burst_against_pickled_calls(benchmark: Any, what: str, args: tuple[Any, ...]) -> None:
    of_actor = what == "actor calls"
    plain_s = cpu_s(lambda: pickled_calls(args))
    ratio = burst(args, of_actor=of_actor) / plain_s
    benchmark.extra_info["times_pickled_calls"] = round(ratio, 1)
    print(f"\n{what}, {args}: {ratio:.1f} x pickled calls of {plain_s / CALLS * 1e6:.2f} us")
    benchmark.pedantic(burst, args=(args,), kwargs={"of_actor": of_actor}, rounds=1)
