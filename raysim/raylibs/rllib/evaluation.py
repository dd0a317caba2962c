"""Evaluation: runners of their own, or the driver's, sample so many episodes or env steps.

Real counterpart: ``Algorithm.evaluate`` (ray 2.60): the duration is divided among the runners;
``auto`` samples in rounds until the training iteration that it runs beside is over.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.raycore.scripts import Event, Script, drop, get
from raysim.raycore.tasks import Ref, TaskError
from raysim.raylibs.rllib.actors import EnvRunnerGroup, died


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """How much an evaluation samples.

    Parameters
    ----------
    unit, count
        What is counted, by RLlib's names; ``count`` None: env steps, until training is done.
    fewest
        Env steps of a runner in one round of the latter.
    """

    unit: str = "episodes"
    count: int | None = 10
    fewest: int = 100


def evaluate(group: EnvRunnerGroup, said: Duration, over: Event | None = None) -> Script:
    """(env steps, episodes or None), or a TaskError of the user's code."""
    if group.local is not None:
        value = yield from group.local.evaluate(said.unit, said.count or said.fewest)
        return value if isinstance(value, TaskError) else value.value
    if said.count is not None:
        return (yield from _round(group, said.unit, said.count))
    assert over is not None, "an evaluation that ends with training, without training"
    steps = 0
    while not over.is_set or not steps:
        came = yield from _round(group, "timesteps", said.fewest * max(1, group.num_healthy))
        if isinstance(came, TaskError):
            return came
        steps += came[0]
        if not came[0]:
            break
    return steps, None


def _round(group: EnvRunnerGroup, unit: str, count: int) -> Script:
    """Each healthy runner its share."""
    healthy = [i for i in range(len(group.runners)) if group.healthy[i]]
    asked: list[tuple[int, Ref]] = []
    for n, i in enumerate(healthy):
        share = count // len(healthy) + (n < count % len(healthy))
        if share:
            refs = yield group.runners[i].call("evaluate", unit, share)
            asked.append((i, refs[0]))
    steps = episodes = 0
    for i, ref in asked:
        values = yield get([ref])
        yield drop(ref)
        if died(values):
            group.failed(i, values)
            if group.error is not None:
                return group.error
            continue
        steps += values[0].data[0]
        episodes += values[0].data[1] or 0
    return steps, episodes if unit == "episodes" else None
