"""Clients: who sends which requests when; and what they saw, as benchmarks of servers say it.

Real counterpart: ``vllm bench serve``: requests come at once or as a Poisson process, at most so
many are under way, and each is timed from the moment it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log1p, sqrt
from typing import TYPE_CHECKING, Any

from raysim.serving.engine import Request, Served
from raysim.serving.fleet import Fleet
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    from raysim.kernel.simulation import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of prompts or outputs: log-normal around a mean.

    Parameters
    ----------
    mean
        Of the distribution, not of its logarithm.
    cv
        Standard deviation over mean; 0: all alike.
    most
        Longer ones are cut.
    """

    mean: float
    cv: float = 0.0
    most: int | None = None

    def draw(self, draws: Any) -> int:
        """One of them, at least 1."""
        length = self.mean
        if self.cv:
            variance = log1p(self.cv**2)
            length *= exp(sqrt(variance) * float(draws.standard_normal()) - variance / 2)
        whole = max(1, round(length))
        return whole if self.most is None else min(whole, self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What clients ask for.

    Parameters
    ----------
    prompt, output
        Lengths in tokens.
    requests
        How many, in all.
    rate_per_s
        Of a Poisson process; None: each is sent as soon as it may.
    concurrency
        At most so many under way; None: no limit.
    prefixes, prefix_tokens
        Prompts begin with one of so many texts of so many tokens.
    """

    prompt: Lengths
    output: Lengths
    requests: int
    rate_per_s: float | None = None
    concurrency: int | None = None
    prefixes: int = 0
    prefix_tokens: int = 0
    max_model_len: int | None = None
    """Prompts are cut so that prompt and output stay within it."""

    def __post_init__(self) -> None:
        assert self.rate_per_s or self.concurrency, "neither a rate nor a number of clients"

    def draw(self, draws: Any) -> Request:
        """The next request."""
        prompt, output = self.prompt.draw(draws), self.output.draw(draws)
        if self.max_model_len is not None:
            output = min(output, self.max_model_len - 1)
            prompt = min(prompt, self.max_model_len - output)
        if not self.prefixes:
            return Request(prompt_tokens=prompt, output_tokens=output)
        return Request(
            prompt_tokens=prompt, output_tokens=output,
            prefix=int(draws.integers(self.prefixes)),
            prefix_tokens=min(self.prefix_tokens, prompt),
        )  # fmt: skip


class Clients:
    """Send a load's requests to a fleet.

    Parameters
    ----------
    draws
        A stream: lengths, and gaps between arrivals.
    ended
        Called when the last request is done.
    """

    def __init__(
        self,
        simulation: Simulation,
        fleet: Fleet,
        load: Load,
        draws: Any,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        self._simulation = simulation
        self._fleet = fleet
        self._load = load
        self._draws = draws
        self._ended = ended
        self._due = 0
        """Have arrived, and wait for a place."""
        self._arrived = 0
        self._away = 0
        self.served: list[Served] = []
        self._gaps_ns: list[int] = []
        """Between arrivals, the next one last."""

    def start(self) -> None:
        """From now on."""
        if self._load.rate_per_s is None:
            self._due = self._arrived = self._load.requests
            self._send()
        else:
            self._gaps_ns = self._poisson(self._load.rate_per_s)
            self._arrive(None)

    def _poisson(self, rate_per_s: float) -> list[int]:
        """Gaps, scaled so that the last comes when the rate says (``vllm bench serve`` does so)."""
        gaps_s = self._draws.exponential(1 / rate_per_s, self._load.requests)
        scaled = gaps_s * (self._load.requests / rate_per_s / gaps_s.sum())
        return [round(gap_s * NS_PER_S) for gap_s in scaled]

    def _arrive(self, _: object) -> None:
        self._due += 1
        self._arrived += 1
        if self._arrived < self._load.requests:
            self._simulation.clock.call_later(self._gaps_ns.pop(), self._arrive)
        self._send()

    def _send(self) -> None:
        most = self._load.concurrency
        while self._due and (most is None or self._away < most):
            self._due -= 1
            self._away += 1
            self._fleet.submit(self._load.draw(self._draws), self._got)

    def _got(self, served: Served) -> None:
        self._away -= 1
        self.served.append(served)
        self._send()
        if len(self.served) == self._load.requests:
            self._ended()
