"""FSDP2 around the stages of ``torch.distributed.pipelining``.

Sources: ``stage.py`` (``backward_maybe_with_nosync``, ``perform_reduce_grad``), ``schedules.py``
(UNSHARD, RESHARD, REDUCE_GRAD) of torch 2.13. No backward gives parameters back or reduces
gradients, which stay whole in the reduction's type; behind a stage's last backward, and what it
sends, every group is reduced in turn, the stage's own first. Schedules of several stages per rank
gather whole stages ahead of their first pass.

torch 2.13 itself loses gradients of the last stage's blocks where a zero-bubble schedule meets
``reshard_after_forward=True``: here they are reduced.

Simplification: a backward's first group prefetches nothing of the forward before its own.
"""

from __future__ import annotations

from raysim.training.engines.fsdp2 import Fsdp2
from raysim.training.program import Call
from raysim.training.states.wrapping import Group


class PipedFsdp2(Fsdp2):
    """Of one stage; a rank of several has one more that sets up and steps them all."""

    def begin_forward(self) -> None:
        """What was gathered ahead is copied out before anything runs."""
        super().begin_forward()
        self._arrive()

    def begin_backward(self, *, boundary: bool) -> None:
        """All backwards are alike."""
        del boundary
        self._arrive()
        self.passed: set[Group] = set()

    def begin_input_gradients(self) -> None:
        """Hooks of a backward that makes no gradients of weights."""
        self._arrive()
        for group in reversed(self.groups):
            self._unshard(group)
            self._wait(group, forward=False)

    def post_forward(self, group: Group) -> None:
        """Forwards before a backward all have the same order."""
        order = self.order[:]
        super().post_forward(group)
        if group in order:
            self.order = order

    def post_backward(self, group: Group) -> None:
        """Parameters stay, gradients too."""
        self.passed.add(group)
        if group.trainable:
            self._keep_whole(group)

    def end_backward(self) -> None:
        """Where weight gradients come alone, hooks of what has none are not run here."""
        for group in self.groups:
            if group not in self.passed:
                self.post_backward(group)
        self.open.clear()

    def gather_ahead(self) -> None:
        """UNSHARD: all-gathers of the whole stage, one behind the other."""
        for group in self.groups:
            self._unshard(group)

    def _arrive(self) -> None:
        for group in tuple(self.coming):
            self._wait(group, forward=False)

    def give_back(self) -> None:
        """RESHARD."""
        for group in self.groups:
            self._free(group)

    def reduce_gradients(self) -> None:
        """REDUCE_GRAD: of every group, then wait for all."""
        self.synced.clear()
        for group in self.groups:
            self._free(group)
            if group in self.kept:
                self.kept.remove(group)
                width = self.reduce_width if self._upcasts else self.width
                self._sum_replicated(group, width)
                self._scatter(group, width)
        super().end_backward()

    def _sum_replicated(self, group: Group, width: int) -> None:
        """Over tensor-parallel ranks, of weights that are whole on each and saw a part of it all.

        Their passes would do it in the computed type, once for every micro-batch.
        """
        b, waits = self.b, self.b.last_on("compute")
        for unit in self.c.units:
            if self.owner.get(id(unit)) is not group:
                continue
            for call in unit.exchanges.after_backward:
                if call.of_weights:
                    summed = Call(call.op, call.group, call.size_bytes * width // self.width)
                    waits = (b.collective(f"all-reduce {unit.name}", summed, waits=waits),)
        if waits:
            b.compute("gradients summed", "collective", 0.0, launches=0, waits=waits)
