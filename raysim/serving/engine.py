"""An inference engine on the kernel's clock: iterations one after another, requests in and out.

Real counterpart: vLLM's V1 engine core. While every running sequence decodes and nobody can be
admitted, nothing but the lengths changes from one iteration to the next: such a stretch is one
event, and its iterations are worked out together with the very arithmetic that steps one by one. A
request that arrives meanwhile cuts the stretch at the end of the iteration it falls into, as it
would wait for it. Both ways give the same nanoseconds (a property test holds it). Of an engine with
pipeline stages an iteration is the pass of all batches that are under way together.

Not modelled: requests that change while they run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.errors import InfeasibleError
from raysim.kernel.sampler import Sampler
from raysim.serving.capacity import Capacity
from raysim.serving.kv_cache import BlockPool
from raysim.serving.lora import Adapters
from raysim.serving.scheduler import Part, Scheduler, Sequence
from raysim.serving.settings import EngineSettings
from raysim.serving.stages import Stages
from raysim.serving.timing import IterationTimes
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    import numpy.typing as npt

    from raysim.kernel.clock import Handle
    from raysim.kernel.simulation import Simulation

ONE_STAGE = Stages()
MOST_AHEAD = 256
"""Iterations worked out at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asks for."""

    prompt_tokens: int
    output_tokens: int
    prefix: Hashable = None
    """Name of what the prompt begins with and others do too."""
    prefix_tokens: int = 0
    received_tokens: int = 0
    """Of the prompt, whose keys and values another engine has computed and sent."""
    adapter: Hashable = None
    """Name of the low-rank adapter it passes; its prefix is its adapter's own."""

    def __post_init__(self) -> None:
        assert self.prompt_tokens >= 1, "a prompt has a token"
        assert self.received_tokens < self.prompt_tokens, "the last token's logits are needed"
        assert self.output_tokens >= 1, "a request makes a token"
        assert self.prefix_tokens <= self.prompt_tokens, "a prefix is a part of its prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A request that has its last token, as its engine saw it or its client."""

    request: Request
    sent_ns: int
    """To the engine: when it arrived there."""
    first_token_ns: int
    finished_ns: int
    preemptions: int = 0
    hit_tokens: int = 0
    """Of the prompt, found in the cache."""

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return (self.first_token_ns - self.sent_ns) / NS_PER_S

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; 0 of a single one."""
        after = self.request.output_tokens - 1
        return (self.finished_ns - self.first_token_ns) / NS_PER_S / after if after else 0.0

    @property
    def seconds(self) -> float:
        """From sending to the last token."""
        return (self.finished_ns - self.sent_ns) / NS_PER_S


class LLMEngine:
    """One engine: a model on the GPUs of one replica.

    Parameters
    ----------
    simulation
        Whose clock it runs on.
    times, capacity, settings
        How long iterations take; how many blocks there are; vLLM's settings with the GPU's
        defaults.
    stages
        Of a pipeline.
    stepwise
        Work out every iteration by itself; for tests.

    Raises
    ------
    InfeasibleError
        The model leaves no room for a sequence of ``max_model_len`` tokens.
    """

    def __init__(
        self,
        simulation: Simulation,
        times: IterationTimes,
        capacity: Capacity,
        settings: EngineSettings,
        *,
        stages: Stages = ONE_STAGE,
        stepwise: bool = False,
    ) -> None:
        refusal = capacity.refusal(settings.max_model_len or 1)
        if refusal:
            raise InfeasibleError(refusal, {"GPU memory": 1})
        self.simulation = simulation
        self.times = times
        self.settings = settings
        self.capacity = capacity
        self.pool = BlockPool(
            capacity.blocks, capacity.block_size, capacity.window_blocks, capacity.state_blocks
        )
        self.stages = stages
        self.adapters = Adapters(times, settings) if settings.enable_lora else None
        self.scheduler = Scheduler(settings, self.pool, batches=stages.count)
        self.iterations = 0
        self.busy_ns = 0
        self.tokens_made = 0
        self.samples = Sampler()
        """Running and waiting requests, share of the cache in use, tokens made, iterations, busy
        seconds; the last three from the beginning."""
        self._stepwise = stepwise
        self._parts: list[Part] = []
        self._ends_ns: npt.NDArray[np.int64] | None = None
        """When each iteration of the stretch under way ends."""
        self._began_ns = 0
        self._event: Handle | None = None

    @property
    def load(self) -> int:
        """Requests that run or wait."""
        return len(self.scheduler.running) + len(self.scheduler.waiting)

    def submit(
        self,
        request: Request,
        then: Callable[[Served], object],
        started: Callable[[], object] | None = None,
    ) -> Sequence:
        """A request arrives; ``started`` with its first token, ``then`` when its last is made.

        Raises
        ------
        InfeasibleError
            It is longer than the cache: it could never finish.
        """
        assert request.adapter is None or self.adapters, "an engine with enable_lora"
        length = request.prompt_tokens + request.output_tokens
        if not self.capacity.fits(length):
            raise InfeasibleError(self.capacity.refusal(length), {"key-value cache": 1})
        sequence = Sequence(
            request=request, prompt=request.prompt_tokens, output=request.output_tokens,
            arrived_ns=self.simulation.now_ns, then=then, prefix=request.prefix,
            prefix_tokens=request.prefix_tokens, received=request.received_tokens,
            started=started, adapter=request.adapter,
        )  # fmt: skip
        self.scheduler.waiting.append(sequence)
        if self._event is None:
            self._begin()
        elif self._may_enter:
            self._cut()
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Its client has left: it ends with the iteration under way, or never begins."""
        if sequence in self.scheduler.waiting:
            self.scheduler.waiting.remove(sequence)
        elif sequence in self.scheduler.running:
            sequence.output = max(1, sequence.made)
            if self._event is not None:
                self._cut()

    def tokens_of(self, sequence: Sequence) -> int:
        """Made by now, those of the stretch under way among them."""
        ends_ns = self._ends_ns
        if ends_ns is None or len(ends_ns) == 1 or not sequence.decodes:
            return sequence.made
        now_ns = self.simulation.now_ns
        return sequence.made + int(np.searchsorted(ends_ns, now_ns, side="right"))

    @property
    def next_ns(self) -> int:
        """When the iteration under way ends; now, if there is none."""
        ends_ns, now_ns = self._ends_ns, self.simulation.now_ns
        if ends_ns is None:
            return now_ns
        at = int(np.searchsorted(ends_ns, now_ns, side="right"))
        return int(ends_ns[min(at, len(ends_ns) - 1)])

    @property
    def _may_enter(self) -> bool:
        """Whether there is a place for the one that has come, who may pass others' adapters by."""
        first = len(self.scheduler.waiting) == 1 or self.settings.enable_lora
        return first and len(self.scheduler.running) < (self.settings.max_num_seqs or 0)

    # ---- iterations ------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the next iteration, or stretch of them, if there is anything to do."""
        self._event, self._ends_ns = None, None
        parts = self.scheduler.schedule()
        if self.samples.due(self.simulation.now_ns):
            self._look()
        if not parts:
            assert not self.scheduler.running, "sequences run, and none is scheduled"
            return
        self._parts = parts
        self._began_ns = self.simulation.now_ns
        steps = 1 if self._stepwise else self._alike()
        ends_ns = self._began_ns + np.cumsum(self._durations_ns(steps))
        self._ends_ns = ends_ns
        self._event = self.simulation.clock.call_at(int(ends_ns[-1]), self._end, steps)

    def _look(self) -> None:
        scheduler, pool = self.scheduler, self.pool
        self.samples.add(
            self.simulation.now_ns, len(scheduler.running), len(scheduler.waiting),
            pool.used / pool.blocks, self.tokens_made, self.iterations, self.busy_ns / NS_PER_S,
        )  # fmt: skip

    def _alike(self) -> int:
        """Iterations ahead that only decode these sequences: until one ends or blocks run out."""
        if len(self._parts) != len(self.scheduler.running):
            return 1
        if self.scheduler.waiting and self.scheduler.shut:
            return 1  # else who waits found no blocks, of which there are only ever fewer
        steps = MOST_AHEAD
        for s, _ in self._parts:
            if not s.made or s.computed != s.prompt + s.made - 1:
                return 1  # it does not decode
            left = s.output - s.made
            if left < steps:
                steps = left
        while steps > 1 and self.scheduler.blocks_ahead(steps) > self.pool.free:
            steps //= 2
        return steps

    def _durations_ns(self, steps: int) -> npt.NDArray[np.int64]:
        lengths, prompts = [], []
        tokens = sampled = 0
        for part in self._parts:
            s, count = part
            length = s.prompt + s.made
            tokens += count
            sampled += s.computed + count == length
            if s.made and s.computed == length - 1:
                lengths.append(length)
            else:
                prompts.append(part)
        prompts_s = 0.0
        for s, count in prompts:
            prompts_s += self.times.prompt_s(count, s.computed, len(prompts))
        contexts_s = self.times.contexts_ahead_s(
            np.array(lengths, dtype=np.int64), steps, beside_prompts=bool(prompts)
        )
        batches = self.stages.batches(
            len(self._parts), tokens, self.settings.max_num_batched_tokens or tokens
        )
        each = ceil(tokens / batches)
        fixed_s = self.times.tokens_s(each) + self.times.sampled_s(ceil(sampled / batches))
        fixed_s += prompts_s / batches + self.stages.hops_s(each)
        seconds = fixed_s + contexts_s / batches
        if self.adapters is not None:
            tokens_of = Counter[Hashable]()
            for s, count in self._parts:
                if s.adapter is not None:
                    tokens_of[s.adapter] += count
            each = ceil(tokens_of.total() / batches)
            seconds += self.adapters.applied_s(each, len(tokens_of))
            seconds[0] += self.adapters.come_s(tokens_of)
        return np.ceil(seconds * NS_PER_S).astype(np.int64)

    def _cut(self) -> None:
        """Somebody has come: the stretch ends with the iteration under way."""
        ends_ns = self._ends_ns
        assert ends_ns is not None
        assert self._event is not None
        steps = int(np.searchsorted(ends_ns, self.simulation.now_ns, side="left")) + 1
        if steps < len(ends_ns):
            self.simulation.clock.cancel(self._event)
            self._ends_ns = ends_ns[:steps]
            self._event = self.simulation.clock.call_at(int(ends_ns[steps - 1]), self._end, steps)

    def _end(self, steps: int) -> None:
        """So many iterations are over: tokens are made, requests end."""
        now_ns = self.simulation.now_ns
        self.iterations += steps
        self.busy_ns += now_ns - self._began_ns
        if steps > 1:
            self.scheduler.take_ahead(steps)
        ended = False
        for sequence, tokens in self._parts:
            computed = sequence.computed + tokens
            sequence.computed = computed + (steps - 1)
            if computed != sequence.prompt + sequence.made:
                continue  # of its prompt something is left
            sequence.made += steps
            self.tokens_made += steps
            if sequence.first_ns < 0:
                sequence.first_ns = now_ns
                if sequence.started is not None:
                    self.simulation.clock.call_later(0, _call, sequence.started)
            ended |= sequence.made >= sequence.output
        if ended:
            self._finish(now_ns)
        self._begin()

    def _finish(self, now_ns: int) -> None:
        done = [s for s in self.scheduler.running if s.made >= s.output]
        self.scheduler.running = [s for s in self.scheduler.running if s.made < s.output]
        for s in done:
            self.scheduler.release(s)
        for s in done:
            self.simulation.clock.call_later(0, s.then, _outcome(s, now_ns))


def _call(then: Callable[[], object]) -> None:
    then()


def _outcome(s: Sequence, now_ns: int) -> Served:
    request: Any = s.request
    return Served(
        request=request, sent_ns=s.arrived_ns, first_token_ns=s.first_ns, finished_ns=now_ns,
        preemptions=s.preemptions, hit_tokens=s.hit_tokens,
    )  # fmt: skip
