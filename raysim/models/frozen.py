"""A layer table of which only a part is trained.

``frozen`` reads from the parameters which are trained and takes out of backward what autograd then
leaves out: gradients of frozen weights, the inputs that were kept for them, and everything before
the first layer that has something to train.

Sources: ``requires_grad`` as torch's autograd follows it (a product keeps its input for its
weight's gradient, its weight for its input's). Eager norms of transformers multiply by their weight
as an operator of its own, whose backward is a product and a sum over rows.

Simplified: layers are a chain; operators that do not say what they read take it from those before;
position tables, scales and the like that a layer adds by itself cost as if they were trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from raysim.models.table import Body, Layer, Model, Module, Operator, Saved

FUSED_PASSES, EAGER_PASSES, EAGER_KERNELS = 2.0, 4.0, 2
"""A norm's weight gradient reads two tensors in one kernel; eager, a product of two tensors is
written and summed."""


def only_trained(model: Model, chosen: Callable[[str], bool], *, entered: bool = False) -> Model:
    """The model with the parameters of these full names trained, and no others.

    ``entered``: what the embedding gives requires gradients although it is frozen, as after
    transformers' ``enable_input_require_grads``.
    """

    def flags(layer: Layer) -> tuple[bool, ...]:
        return tuple(chosen(p.tied_to or layer.full(p.name)) for p in layer.body.parameters)

    made = model.with_layers(flags, lambda layer: _flagged(layer.body, iter(flags(layer))))
    return frozen(made, entered=entered)


def frozen(model: Model, *, entered: bool = False) -> Model:
    """The model without what backward leaves out; layers that share a body still do."""
    bodies: dict[tuple[int, bool], tuple[Body, bool]] = {}
    layers, live = [], False
    for layer in model.layers:
        key = id(layer.body), live
        if key not in bodies:
            reach = _Reach(live)
            modules = tuple(reach.module(m) for m in layer.body.modules)
            bodies[key] = replace(layer.body, modules=modules), reach.live
        body, live = bodies[key]
        live = live or (entered and layer.kind == "embedding")
        layers.append(replace(layer, body=body))
    return replace(model, layers=tuple(layers))


def _flagged(body: Body, flags: Iterator[bool]) -> Body:
    modules = [
        replace(m, parameters=tuple([replace(p, trainable=next(flags)) for p in m.parameters]))
        for m in body.modules
    ]
    return replace(body, modules=tuple(modules))


class _Reach:
    """How far backward gets in one layer, tensor by tensor where operators say what they read."""

    def __init__(self, live: bool) -> None:
        self.entered = live
        """Whether what comes from outside requires gradients."""
        self.made: dict[str, bool] = {}
        """The same of what is made inside."""

    @property
    def live(self) -> bool:
        """Whether what leaves the layer requires gradients."""
        return self.entered or any(self.made.values())

    def module(self, module: Module) -> Module:
        """One module's operators."""
        operators = tuple(self._operator(o, module) for o in module.operators)
        return replace(module, operators=operators)

    def _operator(self, o: Operator, module: Module) -> Operator:
        trained = any(p.trainable for p in module.parameters)
        entered = self.entered or (not o.reads and self.live)
        inside = any(self.made.get(s.name, self.entered) for s in o.reads)
        arrives = inside if o.reads else entered and o.kind != "embedding"
        if o.result:
            self.made[o.result] = arrives or trained or self.made.get(o.result, False)
        if not arrives and not trained:
            return _still(o)
        return _part(o, module, arrives=arrives, trained=trained)


def _still(o: Operator) -> Operator:
    """Nothing before it is trained: nothing is kept, backward does not get here."""
    return replace(
        o, gradients="none", saves=tuple(s for s in o.saves if s.returned), flops_backward=0.0,
        moved_backward=0.0, moved_fixed_backward=0.0, indexed_backward=0.0, kernels_backward=0,
        scratch_backward=(),
    )  # fmt: skip


def _part(o: Operator, module: Module, *, arrives: bool, trained: bool) -> Operator:
    """Without the gradients of frozen weights, and of inputs that require none."""
    if o.kind == "norm" and module.parameters and not (arrives and trained):
        return _norm_weights(o) if trained else _norm(o)
    if o.kind == "routing" and o.split == "column" and o.saves:
        # What is dispatched was kept for the router's weights; to dispatch takes indices alone.
        return replace(o, saves=(replace(o.saves[0], numel=0.0), *o.saves[1:]))
    weights = [p for p in module.parameters if len(p.shape) > 1]
    if o.gemm is None or o.attention is not None or not weights:
        return o
    if not any(p.trainable for p in weights):
        return _inputs(o, module)
    return o if arrives else _weights(o, module)


def _inputs(o: Operator, module: Module) -> Operator:
    """One product in backward, and nothing kept for a second; a bias may still be trained."""
    bias = any(len(p.shape) == 1 and not p.trainable for p in module.parameters)
    kept = tuple(replace(s, numel=0.0) for s in o.saves[:1])
    return replace(
        o,
        gradients="inputs",
        flops_backward=o.flops,
        moved_backward=max(0.0, o.backward_moved - o.moved - bias * o.output),
        kernels_backward=max(1, o.backward_kernels - o.kernels - bias),
        saves=(*kept, *o.saves[1:]),
    )


def _weights(o: Operator, module: Module) -> Operator:
    """The other product, and a sum for a bias; no gradient of the input meets others."""
    bias = any(len(p.shape) == 1 and p.trainable for p in module.parameters)
    return replace(
        o,
        gradients="weights",
        flops_backward=o.flops,
        moved_backward=o.moved + bias * o.output,
        kernels_backward=o.kernels + bias,
    )


def _norm(o: Operator) -> Operator:
    """Eager ones keep what their weight multiplies, for the weight alone."""
    scaled, passes, own = _weight_gradient(o)
    return replace(
        o,
        gradients="inputs",
        moved_backward=max(0.0, o.backward_moved - passes * o.output),
        kernels_backward=max(1, o.backward_kernels - own),
        saves=tuple(s for s in o.saves if s not in scaled),
    )


def _norm_weights(o: Operator) -> Operator:
    """Nothing before it is trained: an eager one needs what its weight multiplied, no more."""
    scaled, passes, own = _weight_gradient(o)
    return replace(
        o, gradients="weights", moved_backward=passes * o.output, kernels_backward=own,
        saves=scaled or o.saves,
    )  # fmt: skip


def _weight_gradient(o: Operator) -> tuple[tuple[Saved, ...], float, int]:
    """Of a norm: what is kept for it, passes over the output, kernels."""
    scaled = tuple(s for s in o.saves if s.name.endswith(".normed"))
    width = 2.0 if any(s.dtype == "fp32" for s in scaled) else 1.0
    return (scaled, EAGER_PASSES * width, EAGER_KERNELS) if scaled else ((), FUSED_PASSES, 1)
