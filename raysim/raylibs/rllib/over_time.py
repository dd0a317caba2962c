"""Training over time: env steps per second, what each iteration did."""

from __future__ import annotations

from collections.abc import Iterable

from raysim.raylibs.charts import Bar, Chart, Line
from raysim.raylibs.rllib.result import Iteration, TrainingResult
from raysim.units import NS_PER_S

MOST_BARS = 400
"""Iterations drawn one by one."""
PHASES = {
    "PPO": ("sample", "learn", "sync"),
    **dict.fromkeys(("DQN", "SAC"), ("sample", "buffer", "learn", "sync")),
}
"""Of algorithms whose phases are in turn."""


def charts_of(result: TrainingResult, algorithm: str) -> tuple[Chart, ...]:
    """Of PPO and DQN their phases in turn; of IMPALA, whose parts overlap, rates."""
    done = [i for i in result.iterations if i.took_s > 0]
    trained = [(_end_s(i), i.env_steps_trained / i.took_s) for i in done]
    sampled = [(_end_s(i), i.env_steps_sampled / i.took_s) for i in done]
    lines = [Line(name="trained", points=tuple(trained))]
    if sampled != trained:
        lines.append(Line(name="sampled", points=tuple(sampled)))
    found = [
        Chart(
            key="env-steps", title="Env steps", unit="per_s", lines=tuple(lines),
            about="Of each iteration (algo.train()).",
        )
    ]  # fmt: skip
    phases = phases_of(algorithm)
    if phases:
        seconds = [
            Line(name=name, points=tuple((_end_s(i), getattr(i, f"{name}_s")) for i in done))
            for name in phases
        ]
        found.append(
            Chart(
                key="phases", title="Iterations: sampling and learning", unit="seconds",
                about="The driver's time in each phase of an iteration; they are in turn.",
                lines=tuple(seconds),
            )
        )  # fmt: skip
        shown = done[:MOST_BARS]
        found.append(
            Chart(
                key="iterations", title="Iterations", left_out=len(done) - len(shown),
                bars=tuple(bar for i in enumerate(shown) for bar in _bars(*i, phases)),
            )
        )  # fmt: skip
    else:
        busy = tuple((_end_s(i), i.learn_s / i.took_s) for i in done)
        found.append(
            Chart(
                key="learners", title="Learners at work", unit="share", limit=1.0,
                lines=(Line(name="learners", points=busy),),
            )
        )  # fmt: skip
    return tuple(found)


def phases_of(algorithm: str) -> tuple[str, ...]:
    """By the names of an iteration's seconds; none where they overlap."""
    return PHASES.get(algorithm, ())


def _bars(number: int, iteration: Iteration, phases: tuple[str, ...]) -> Iterable[Bar]:
    at_s = iteration.began_ns / NS_PER_S
    for name in phases:
        takes_s = getattr(iteration, f"{name}_s")
        if takes_s:
            text = f"iteration {number + 1}, {iteration.env_steps_trained:,} env steps"
            yield Bar(row=name, from_s=at_s, to_s=at_s + takes_s, state=name, text=text)
        at_s += takes_s


def _end_s(iteration: Iteration) -> float:
    return iteration.ended_ns / NS_PER_S
