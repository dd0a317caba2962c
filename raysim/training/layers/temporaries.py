"""What a unit has in memory beside what it keeps: tensors that its passes make and let go of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from raysim.models.table import COMPUTE_DTYPE_BYTES, Operator, Saved
from raysim.perf import workspaces
from raysim.perf.compute import ComputeModel
from raysim.training.layers.sections import Cut, saved_bytes
from raysim.training.layers.sharding import Exchange, Exchanges, Sharding, source_of
from raysim.training.settings.deepspeed import Precision

TOKEN_COPIES = 3
"""Of routed tokens on their way: permuted, exchanged, sorted by expert (``MoELayer``)."""
SMALLEST = 512
"""Bytes that torch's allocator gives at least: what is less is a scalar, as the loss's gradient
that is there beside every module's backward, and would be heard as often."""


@dataclass(frozen=True, slots=True)
class Temporaries:
    """Of units of one micro-batch size, data type and degree of tensor parallelism."""

    costs: ComputeModel
    batch: int
    dtype: Precision
    sharding: Sharding
    cut: Cut
    holds_logits: bool

    def bytes(self, saved: Saved) -> int:
        """Of a tensor on this rank."""
        return saved_bytes(saved, self.batch, self.sharding.kept(saved), self.dtype)

    def of(
        self, operators: Sequence[Operator], around: Exchanges
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Largest output alive in forward; largest output and input gradient in backward.

        Each with what lives beside it, tensor by tensor; what was gathered is whole beside them.
        """
        width = COMPUTE_DTYPE_BYTES[self.dtype]
        workspace_bytes = partial(workspaces.workspace_bytes, sms=self.costs.gpu.sm_count)
        beside = 0
        forward: tuple[float, ...] = (0.0,)
        backward: tuple[float, ...] = (0.0,)
        in_place = any(_overwrites(o) for o in operators)
        waiting, passed_on = sum(self.waiting(operators)), self.cut == "module"
        for o in operators:
            if o.kind == "loss":
                beside, copy, gradients = self._loss_scratch(o)
                forward = max(forward, (copy,), key=sum)
                backward = max(backward, gradients, key=sum)
                continue
            divisor = divisor_of(o, self.sharding.tp) if o.split != "row" else 1
            samples = self.sharding.samples(o, self.batch)
            out = o.output * samples * width / divisor
            grad_in = out
            if o.gradient is not None:
                grad_in = o.gradient * samples * width
            elif o.saves:
                grad_in = self.bytes(source_of(o))
            workspace = 0 if self.costs.serial else workspace_bytes(o, samples, width)
            made = out
            if o.traced:
                made = 0.0 if passed_on else sum(n for n, *_ in o.left) * samples * width
            forward = max(forward, (made, workspace, *map(self.bytes, o.scratch)), key=sum)
            if o.gradients == "none":
                continue
            if workspace or (o.conv and not self.costs.serial):
                workspace = workspace_bytes(o, samples, width, backward=True)
            out = 0.0 if in_place or o.overwritten else out
            beneath: list[float] = [*map(self.bytes, o.scratch_backward)]
            if o.fullest_backward:
                heard = max(0.0, o.fullest_backward * samples * width - waiting)
                out, grad_in = min(out, heard), min(grad_in, max(0.0, heard - out))
                rest = heard - out - grad_in
                beneath += [rest] if rest >= SMALLEST else []
            backward = max(backward, (out, grad_in, workspace, *beneath), key=sum)
        gathered = _largest(around.before_forward, "all_gather")
        again = _largest(around.beside_backward, "all_gather")
        again += _largest(around.after_backward, "reduce_scatter")
        if self.sharding.ep:  # others were heard to copy what they send
            sent = _largest(around.after_forward + around.before_forward, "all_to_all", "ep")
            back = _largest(around.before_backward + around.after_backward, "all_to_all", "ep")
            gathered, again = gathered + TOKEN_COPIES * sent, again + TOKEN_COPIES * back
        parts = (*map(round, backward), again)
        alive = (beside, round(forward[0] + gathered), *map(round, forward[1:]))
        return tuple(size for size in alive if size), tuple(size for size in parts if size)

    def left(self, operators: Sequence[Operator]) -> tuple[tuple[int, int, bool], ...]:
        """Bytes of each tensor that others read, and how many units later it is gone."""
        if self.cut != "module" or not operators:
            return ()
        samples = self.sharding.samples(last := operators[-1], self.batch)
        width = COMPUTE_DTYPE_BYTES[self.dtype]
        return tuple((round(n * samples * width), after, late) for n, after, late in last.left)

    def waiting(self, operators: Sequence[Operator]) -> tuple[int, ...]:
        """Of the operator beside whose backward the most wait."""
        sizes = ([round(self.bytes(s)) for s in o.waiting] for o in operators)
        return tuple(max(sizes, key=sum, default=[]))

    def _loss_scratch(self, o: Operator) -> tuple[int, float, tuple[float, float]]:
        """Logits that die with the loss, what else its forward has, and its backward.

        Of an unfused cross-entropy that does not say: an fp32 copy of the logits, and in backward
        the gradients of log-softmax's output and input side by side. Of DTensor's over pieces of
        the vocabulary (``torch/distributed/tensor/parallel/loss.py``): the shifted copy as well,
        and in backward zeros with exponentials and their sum.
        """
        beside = sum(self.bytes(s) for s in o.saves if s.returned and not self.holds_logits)
        if not o.scratch_backward:
            copy = max((self.bytes(s) for s in o.saves if s.dtype == "fp32"), default=0)
            made = 2 if self.sharding.dtensor and self.sharding.tp > 1 else 1
            return beside, made * copy, (copy, made * copy)
        upcast = [s for s in o.scratch if not s.source or self.dtype != "fp32"]
        back = [self.bytes(s) for s in o.scratch_backward]
        return beside, sum(self.bytes(s) for s in upcast), (back[0], sum(back[1:]))


def divisor_of(o: Operator, tp: int) -> int:
    """Over how many ranks tensor parallelism divides an operator."""
    return 1 if o.split == "none" else tp


def _largest(calls: Sequence[Exchange], op: str, group: str = "") -> int:
    """Bytes of the largest of these exchanges that are ``op``, of ``group`` or any."""
    sizes = (e.size_bytes for e in calls if e.op == op and group in ("", e.group))
    return max(sizes, default=0)


def _overwrites(o: Operator) -> bool:
    """A loss that keeps the logits themselves, and later their gradient in their place."""
    return o.kind == "loss" and bool(o.saves) and all(s.dtype == "compute" for s in o.saves)
