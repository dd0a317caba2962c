"""Listening to one forward and backward pass on the meta device.

A ``TorchDispatchMode`` sees every ATen operator below autograd, in forward and in backward;
``saved_tensors_hooks`` shows what autograd keeps. What is kept for an operator, and its backward,
are matched to it by autograd's sequence number, which forward drew last and the backward node
carries (``Node::sequence_nr``).

A tensor *grows* with the batch if it was computed from one that does, or starts with a dimension of
the batch's size. What does not grow (position tables, masks, casts of weights) costs launches only.

Not modelled: what autograd runs while it accumulates into leaves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from raysim.tracing import attention, composite, operators, own_operators, peers
from raysim.tracing.indexing import SCATTERS
from raysim.tracing.lifetimes import Ends
from raysim.tracing.operators import Call, Kept, tensors
from raysim.tracing.shared import Shared
from raysim.tracing.storages import PLAIN, bytes_of, is_placed, is_spread, key_of, local_part
from raysim.tracing.values import Values
from raysim.tracing.waiting import Waiting, without_ones
from raysim.tracing.walk import Walk

_NUMBER = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001  (``item()``, and conditions)


class Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operator with its module; ``width`` is the bytes of a compute-dtype element.

    ``unknown`` is what a value that nobody knows is taken for; None: the trace fails there.
    """

    def __init__(
        self,
        walk: Walk,
        model: torch.nn.Module,
        *,
        batch: int,
        width: int,
        unknown: Callable[[torch.dtype], Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unknown = unknown
        self.walk = walk
        self.batch = batch
        self.width = width
        self.running = ""
        """The operator that runs, for messages."""
        self.losses = 0
        """Loss functions running, one inside the other."""
        self.values = Values()
        self._waiting = Waiting(local_part(p).shape for p in model.parameters())
        self.ends = Ends()
        self.produced: dict[int, Call] = {}
        """The operator that made a storage."""
        self.loss: Call | None = None
        """The first operator of a loss function on the batch: until its backward is over, outputs
        that somebody holds are in memory."""
        self.has_compiled = False
        """What the compiler makes of its regions has been told to their operators."""
        self.product_flops: defaultdict[torch.dtype, float] = defaultdict(float)
        self.own_operators: dict[str, None] = {}
        """``torch.library``'s, of the script or a package, that nobody has looked into."""
        self._deaf = self._backward = False
        self._calls: dict[int, Call] = {}
        self._spreads = is_spread(model)
        """An operator of tensors that are spread over ranks is several of a rank's, views first."""
        self._weak: set[int] = set()
        """Numbers of which only views and small operators have been heard."""
        self._keeps: list[tuple[int, Call | None, Kept]] = []
        self._views: set[int] = set()
        """Sequence numbers of views, whose backward is charged to the operator before."""
        self._latest: Call | None = None
        self._alive: dict[int, torch.UntypedStorage] = {}
        self._growing: set[int] = set()
        self._on_meta: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.shared = Shared(width)
        self._parameters = {self.key(p): p for p in model.parameters()}
        self._fixed = {*self._parameters, *(self.key(b) for b in model.buffers())}

    def key(self, tensor: torch.Tensor) -> int:
        """Identity of a storage, kept alive so that no other one takes its place."""
        key = key_of(tensor)
        self._alive.setdefault(key, local_part(tensor).untyped_storage())
        return key

    def grows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's size is proportional to the batch."""
        return self.key(tensor) in self._growing

    def mark(self, tensor: torch.Tensor) -> None:
        """Note that a tensor grows."""
        key = self.key(tensor)
        if key not in self._fixed:
            self._growing.add(key)

    @contextmanager
    def in_loss(self) -> Iterator[None]:
        """Operators inside are the loss's."""
        self.losses += 1
        yield
        self.losses -= 1

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """Operators inside are backward's."""
        self._backward = True
        yield
        self._backward = False

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """``pack`` of ``saved_tensors_hooks``: the operator that just drew a number saves this."""
        kept = Kept(self.key(tensor), bytes_of(tensor), tensor.dtype)
        self._keeps.append((_drawn(), self._latest, kept))
        self.ends.keep(kept.key)
        return tensor

    def copy_weight(self, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Autocast's copy, which is the training engine's to account for, as is its backward."""
        parameter = self._parameters.get(self.key(weight))
        if parameter is not None:
            self.walk.use(parameter)
        self._deaf = True
        copy = weight.to(dtype)
        self._deaf = False
        self._calls.setdefault(_drawn(), Call(name="_to_copy", kind="other"))
        return copy

    def finish(self) -> None:
        """Hand what was kept, and grows with the batch, to the operators that kept it."""
        for sequence, latest, kept in self._keeps:
            call = self._calls.get(sequence, latest)
            if call is not None and kept.key in self._growing:
                call.keeps.append(kept)

    def hold(self, made: Sequence[torch.Tensor]) -> None:
        """Somebody has these until backward is over."""
        kept = {k.key for call in self._calls.values() for k in call.keeps}
        for t in made:
            if self.loss is not None and self.grows(t) and self.key(t) not in kept:
                self.loss.keeps.append(Kept(self.key(t), bytes_of(t), t.dtype))

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator, all of it on meta if any of it is, and note it."""
        if any(t not in PLAIN for t in types):  # made of others, of which it calls again
            if not self._backward and self._latest and any(map(is_placed, tensors(args))):
                self._latest.dispatches += round(peers.DISPATCHED)
            return NotImplemented
        self.running, kwargs = str(func), kwargs or {}
        if not self._backward:
            self.ends.look(self._latest)
        if any(t.is_meta for t in tensors((args, kwargs))):
            args, kwargs = tree_map_only(torch.Tensor, self._moved_to_meta, (args, kwargs))
        if func is _NUMBER and args[0].is_meta and not (self._deaf or self._backward):
            self.walk.entry().calls.append(_read())
        answer = self.values.answer(func, args, kwargs)
        if answer is not None:
            return answer[0]
        if func is _NUMBER and self.unknown is not None and args[0].is_meta:
            return self.unknown(args[0].dtype)
        args = self.values.placed(func, args)
        out, parts = composite.run(func, args, kwargs)
        out = operators.laid_out(func, args, out)
        if not self._deaf and any(t.is_meta for t in tensors(out)):
            if not (self._backward and any(t.is_floating_point() for t in tensors(out))):
                self.values.follow(func, args, kwargs, out)  # which keeps what it knows alive
            note = self._note_backward if self._backward else self._note_forward
            for part in parts:
                note(part.func, part.args, part.kwargs, out if len(parts) == 1 else part.out)
        return out

    def _moved_to_meta(self, tensor: torch.Tensor) -> torch.Tensor:
        """A real tensor that a closure or the module made (labels, tables), without its data."""
        if tensor.is_meta:
            return tensor
        known = self._on_meta.get(id(tensor))
        if known is None:
            known = self._on_meta[id(tensor)] = (tensor, tensor.to("meta"))
            self.values.learn(known[1], tensor)
            if self._batched(tensor):
                self.mark(tensor)
                self.mark(known[1])
        return known[1]

    def _batched(self, tensor: torch.Tensor) -> bool:
        return self.batch > 1 and tensor.dim() > 0 and tensor.shape[0] == self.batch

    def _spread(self, given: Sequence[torch.Tensor], out: object, *, free: bool) -> bool:
        """Mark results that grow; whether the operator works on the batch."""
        grows = any(self.grows(t) for t in given)
        for t in tensors(out):
            if grows or (not free and self._batched(t)):
                self.mark(t)
        return grows or any(self.grows(t) for t in tensors(out))

    def _note_forward(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        name = operators.aten_name(func)
        free = operators.launches_nothing(func, name)
        given = list(tensors((args, kwargs)))
        for t in given:
            parameter = self._parameters.get(self.key(t))
            if parameter is not None:
                self.walk.use(parameter)
        grows = self._spread(given, out, free=free)
        if free:
            # What a view's backward launches is charged to the operator before it.
            if self._latest is not None:
                if _drawn() not in self._calls:  # it drew one, and has a node
                    self._calls[_drawn()] = self._latest
                    self._views.add(_drawn())
                if self._calls[_drawn()] is self._latest:
                    self._weak.add(_drawn())
                self._latest.dispatches += name != "detach"  # autograd's own
            return
        if operators.is_exchange(func):
            self._exchanged(name, args, out)
            return
        kind = operators.kind_of(name, in_loss=self.losses > 0, norm_module=self.walk.in_norm)
        call = Call(name=name, kind=kind, kernels=operators.kernels(name, args, out))
        if groups := operators.looped(name, args):
            self.walk.entry().calls.append(_offsets())
            call.dispatches += round(operators.LOOPED * groups)
        if grows:
            result = next(tensors(out), None)
            call.output = operators.elements(result, self.width) if result is not None else 0.0
            call.flops = operators.flops(func, args, kwargs, out)
            call.moved = operators.moved(
                name, (args, kwargs), out, width=self.width, counts=self.grows
            )
            call.indexed = operators.indexed(name, (args, kwargs), out, counts=self.grows)
            call.gemm = operators.product_shape(
                name, args, out, batch=self.batch, counts=self.grows
            )
            if composite.is_own(func):
                made = own_operators.hear(call, func, args, kwargs, self.grows, self.own_operators)
                self.product_flops[made] += call.flops
            elif operators.is_product(name):
                call.exact = given[0].dtype == torch.float32
                call.narrow = given[0].itemsize == 1
                self.product_flops[given[0].dtype] += call.flops
            call.conv = operators.convolution(name, args)
            call.batch_norm = operators.batch_norm(name, args)
            call.results = self._bytes(out)
            call.reads = frozenset(map(self.key, given))
        self._add(call, out)
        rows = operators.sparse_rows(name, args)
        self.shared.given(call, map(self.key, given), self._parameters, rows)

    def _exchanged(self, name: str, args: Sequence[Any], out: Any) -> None:
        """A collective of forward is an operator of its own, which waits."""
        call = Call(name=name, kind="loss" if self.losses else "other")
        self._collective(call, name, args, out)
        result = next(tensors(out))
        if self.grows(result):
            call.output = operators.elements(result, self.width)
            call.results = self._bytes(out)
            call.reads = frozenset(map(self.key, tensors(args)))
        self._add(call, out)

    def _collective(self, call: Call, name: str, args: Sequence[Any], out: Any) -> None:
        found = peers.collective(
            name, args, out, when="backward" if self._backward else "forward",
            batch=self.batch, width=self.width, grows=self.grows,
        )  # fmt: skip
        call.collectives.append(found)

    def __enter__(self) -> Self:
        peers.EARS.append(self)
        return cast("Self", super().__enter__())  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        peers.EARS.remove(self)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def hear(self, op: str, group: str, given: Sequence[Any]) -> None:
        """One of the model's own, in memory that is there already: in forward it waits."""
        self._spread(list(tensors(given)), given, free=False)
        call = None
        if self._backward:
            node = torch._C._current_autograd_node()  # noqa: SLF001  (as above)
            call = self._run_by(_number(node)) or self._latest
        if call is None:
            call = Call(name=op, kind="loss" if self.losses else "other")
            self._add(call, ())
        heard = peers.exchanged(
            op, group, given, when="backward" if self._backward else "forward",
            batch=self.batch, width=self.width, grows=self.grows,
        )  # fmt: skip
        call.collectives.append(heard)

    def _bytes(self, out: object) -> dict[int, int]:
        """Of results that grow with the batch, by storage."""
        made = (t for t in tensors(out) if self.grows(t))
        return {self.key(t): bytes_of(t) for t in made}

    def _add(self, call: Call, out: object) -> None:
        entry = self.walk.entry()
        entry.calls.append(call)
        call.weight_shapes = tuple(p.shape for p in entry.parameters)
        call.compiled = self.walk.in_compiled
        self._numbered(call)
        self._latest = call
        self.ends.begin(call.results)
        for t in tensors(out):
            self.produced.setdefault(self.key(t), call)
        if call.kind == "loss" and call.made and self.loss is None:
            self.loss = call

    def _run_by(self, number: int) -> Call | None:
        """The forward operator of a node; one of spread tensors may have drawn another inside."""
        call = self._calls.get(number)
        return self._calls.get(number + 1) if call is None and self._spreads else call

    def _numbered(self, call: Call) -> None:
        """Whose backward its number's is."""
        number = _drawn()
        if self._spreads and number in self._weak:
            self._calls[number] = call
            self._views.discard(number)
        else:
            self._calls.setdefault(number, call)
        if self._spreads and call.kind in {"elementwise", "other"}:
            self._weak.add(number)
        else:
            self._weak.discard(number)

    def _note_backward(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        """Charge an operator of backward to the forward operator whose node runs."""
        name = operators.aten_name(func)
        free = operators.launches_nothing(func, name)
        given = list(tensors((args, kwargs)))
        self._spread(given, out, free=free)
        new = [t for t in tensors(out) if self.grows(t) and not (free or self.values.has(t))]
        waiting = self._waiting.beside(given, new, self.key)
        node = torch._C._current_autograd_node()  # noqa: SLF001 (as torch.utils.module_tracker does)
        call = self._run_by(_number(node))
        if (
            not free
            and operators.is_exchange(func)
            and (charged := call or self._latest) is not None
        ):
            self._collective(charged, name, args, out)
            return
        if call is None or free:
            return
        if call.waiting is None:
            call.waiting, call.summed = waiting, self._waiting.has_sum(given)
        engines = name == "add" and self._waiting.add(given, out)
        for t in () if engines else given:
            call.waiting.pop(self.key(t), None)
        if call.attention is not None:
            return
        if name in SCATTERS:
            # torch's formulas write into zeros of their own, but where a mode listens.
            out = args[0]
        else:
            of_view = _number(node) in self._views
            self._note_gradient(call, out, of_view=of_view)
            # The engine adds in place, but where a mode listens; a product's view is back before
            # there is a weight's gradient.
            if call.recurrent is None and not (engines or (of_view and call.gemm)):
                call.there.append(self._waiting.there(()))
        call.layer_norm = operators.layer_norm(name, args) or call.layer_norm
        call.kernels_backward += operators.kernels(name, args, out)
        if own_operators.hear_backward(call, func, args, kwargs, out):
            return
        if call.conv is not None and name == "convolution_backward":
            made = [t is not None for t in out]
            call.products_backward += [True] * made[0] + [False] * made[1]
        if name == "embedding_dense_backward":
            call.fixed_backward += operators.elements(out, self.width)  # zeros
        operands = (args, kwargs)

        def counts(t: torch.Tensor) -> bool:
            """A weight's gradient has the weight's shape and does not grow."""
            return self.grows(t) and tuple(t.shape) not in call.weight_shapes

        call.moved_backward += operators.moved(name, operands, out, width=self.width, counts=counts)
        call.indexed_backward += operators.indexed(name, operands, out, counts=counts)

    def _note_gradient(self, call: Call, out: Any, *, of_view: bool) -> None:
        """What backward makes for a call, or for a view after it."""
        made = self._bytes(out)
        call.gradients.append((self._waiting.there(made), sum(made.values())))
        weights = {without_ones(shape) for shape in call.weight_shapes}
        weights |= {shape[::-1] for shape in weights}
        inputs = [t for t in tensors(out) if without_ones(t.shape) not in weights]
        sizes = () if of_view else self._bytes(inputs).values()
        call.gradient = max(call.gradient or 0, *sizes, 0)

    def fused(
        self,
        call: Call,
        make: Callable[[], tuple[torch.Tensor, ...]],
        given: Sequence[torch.Tensor | None],
    ) -> tuple[torch.Tensor, ...]:
        """Note one function whose kernels are known, and what it makes of the batch."""
        for t in tensors(given):
            parameter = self._parameters.get(self.key(t))
            if parameter is not None:
                self.walk.use(parameter)
        self._deaf = True
        made = make()
        self._deaf = False
        for t in made:
            self.mark(t)
        self._add(call, made)
        return made

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        *,
        causal: bool,
        visited: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """One fused attention: output, log-sum-exp, bias.

        A boolean mask becomes a float bias of this call's own. Backward is row sums of dO * O, then
        dK, dV and dQ, then a cast of dQ; it reads and writes everything twice.
        """
        self._deaf = True
        lead, heads, rows, width = q.shape[:-3], q.shape[-3], q.shape[-2], v.shape[-1]
        out = attention.output(q, width)
        lse = q.new_empty(*lead, heads, rows, dtype=torch.float32)
        bias = mask
        if mask is not None and mask.dtype == torch.bool:
            bias = torch.empty_like(mask, dtype=q.dtype)
        self._deaf = False
        for t in (out, lse):
            self.mark(t)
        if bias is not None and mask is not None and self.grows(mask):
            self.mark(bias)
        trained = any(t.requires_grad for t in (q, k, v))
        passes = sum(operators.elements(t, self.width) for t in (q, k, v, out))
        written = operators.elements(out, self.width)
        call = Call(
            name="scaled_dot_product_attention",
            kind="attention",
            flops=2.0 * math.prod(q.shape[:-1]) * k.shape[-2] * (q.shape[-1] + width),
            moved=passes,
            output=written,
            kernels=1 + (bias is not mask),
            moved_backward=2 * passes + written if trained else 0.0,
            kernels_backward=3 if trained else 0,
            attention=attention.core(q, k, width, self.batch, causal=causal, visited=visited),
        )
        self._add(call, (out, lse))
        return out, lse, bias


def _drawn() -> int:
    """The sequence number that autograd drew last."""
    return int(torch._C._autograd._get_sequence_nr()) - 1  # noqa: SLF001 (as torch.fx.traceback does)


def _offsets() -> Call:
    """Ends of groups, for which the host waits: of a product, and of both of its gradients."""
    return Call(name="offsets", kind="sync", kernels=1, kernels_backward=2, dispatches=3)


def _read() -> Call:
    """A value of the GPU that Python asks for, and the host waits for, whoever knows it here."""
    return Call(name="item", kind="sync", kernels=0, kernels_backward=0, dispatches=1)


def _number(node: Any) -> int:
    return int(node._sequence_nr()) if node is not None else -1  # noqa: SLF001
