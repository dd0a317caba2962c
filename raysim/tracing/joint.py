"""Forward and backward of a module as ``torch.compile`` cuts them: asked of its own partitioner.

A second copy of the module runs once under AOTAutograd on fake tensors, with inductor's
decompositions and passes over the joint graph; what forward then hands to backward is what
``min_cut_rematerialization_partition`` says. Of a run of layers alike the second stands for all
that are neither first nor last: their forward hands back what the layer before them has returned.

Every node says which operator of the eager trace it came from (``Place``): both runs meet the same
operators in the same order.

Not modelled: graph breaks (all is one graph).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import GradAOTOutput
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.fx import traceback
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from raysim.tracing import operators
from raysim.tracing.autocast import Casts
from raysim.tracing.functions import Functions
from raysim.tracing.walk import Walk

_C: Any = torch._C  # noqa: SLF001 (modes of a thread have no other door)
MadeOf = Callable[[torch.Tensor], torch.Tensor]
_PLACE = "raysim"
"""Key of a node's place in what FX hands on to backward (``node.meta["custom"]``)."""


class Place(NamedTuple):
    """An operator of forward: the visit it ran in, and which it was there."""

    visit: int
    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """What is compiled for one training step."""

    forward: fx.Graph
    backward: fx.Graph
    outputs: int
    """Of forward's results, those that are the module's own; the rest is kept for backward."""
    fixed: frozenset[str]
    """Names of forward's inputs that are parameters or buffers."""
    heard: dict[int, list[str]]
    """Names of the operators that ran, by visit."""


def place_of(node: fx.Node) -> Place | None:
    """Where a node came from, if that is known."""
    found: Place | None = node.meta.get("custom", {}).get(_PLACE)
    return found


def partition(
    build: Callable[[MadeOf], torch.nn.Module],
    given: Any,
    run: Callable[[torch.nn.Module, Any], Sequence[torch.Tensor]],
    walk_of: Callable[[torch.nn.Module], Walk],
    *,
    skipped: Sequence[tuple[str, str]] = (),
    autocast: torch.dtype | None = None,
) -> Halves:
    """The two graphs of one step.

    Parameters
    ----------
    build
        A copy of the module, with tensors made of its own by what it is given.
    given
        Inputs, as ``run`` hands them to the copy.
    run
        Forward and loss: tensors that backward starts from.
    walk_of
        A walk over the copy.
    skipped
        Layers that others stand for, each with the one before it, by their paths.
    autocast
        Type that products run in.

    Raises
    ------
    RuntimeError
        AOTAutograd cannot trace it.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with ExitStack() as modes:
        modes.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # torch's own, of parts that its compiler imports
        from torch._inductor.decomposition import select_decomp_table  # takes half a second
        from torch._inductor.fx_passes.joint_graph import joint_graph_passes
        from torch._inductor.virtualized import V

        for mode in (torch.random.fork_rng(devices=[]), torch.enable_grad()):  # if it learns or not
            modes.enter_context(mode)
        with fake, _C.DisableTorchFunction():
            inner = _named(build(_on_cpu))
            inputs = tree_map_only(torch.Tensor, _on_cpu, given)
        places = _Places(walk_of(inner))
        for path, before in skipped:
            _skip(inner.get_submodule(path), inner.get_submodule(before))
        step = _Step(inner, run, places, autocast, fake)
        modes.enter_context(traceback.preserve_node_meta())
        modes.enter_context(patch.object(torch.compiler, "_is_compiling_flag", new=True))
        found = aot_export_joint_with_descriptors(
            modes, step, (inputs,), decompositions=select_decomp_table()
        )
        joint, parameters = found.graph_module, len(found.params_spec)
        own = [n.name for n in joint.graph.find_nodes(op="placeholder")]
        descriptors = next(iter(joint.graph.find_nodes(op="output"))).meta["desc"]
        returned = next(i for i, d in enumerate(descriptors) if isinstance(d, GradAOTOutput))
        modes.enter_context(V.set_fake_mode(found.fake_mode))
        joint_graph_passes(joint)
        forward, backward = min_cut_rematerialization_partition(
            joint, None, num_fwd_outputs=returned,
            static_lifetime_input_indices=list(range(parameters)),
        )  # fmt: skip
    return Halves(
        forward=forward.graph,
        backward=backward.graph,
        outputs=returned,
        fixed=frozenset(own[: parameters + len(found.buffers_spec)]),
        heard=places.heard,
    )


def _on_cpu(t: torch.Tensor) -> torch.Tensor:
    """A tensor of this form, on the one device whose operators have all gradients when faked."""
    made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu")
    return made.requires_grad_(t.requires_grad)


def _named(model: torch.nn.Module) -> torch.nn.Module:
    """Tensors kept as plain attributes (a rotary table) are inputs of the graph, as buffers are."""
    for part in model.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                del vars(part)[name]
                part.register_buffer(name, value, persistent=False)
    return model


def _skip(layer: torch.nn.Module, before: torch.nn.Module) -> None:
    """Have a layer hand back what the one before it has returned."""
    latest: list[Any] = []
    before.register_forward_hook(lambda _m, _args, out: latest.append(out))
    layer.forward = lambda *_args, **_kwargs: latest[-1]


class _Step(torch.nn.Module):
    """Forward and loss, as one module for AOTAutograd."""

    def __init__(
        self,
        inner: torch.nn.Module,
        run: Callable[[torch.nn.Module, Any], Sequence[torch.Tensor]],
        places: _Places,
        autocast: torch.dtype | None,
        fake: FakeTensorMode,
    ) -> None:
        super().__init__()
        self.inner = inner
        self._run = run
        self._places = places
        self._autocast = autocast
        self._fake = fake

    def forward(self, given: Any) -> tuple[torch.Tensor, ...]:
        """What backward starts from."""
        casts = None if self._autocast is None else Casts(self._autocast, self._places.copy_weight)
        running = nullcontext() if casts is None else casts.running()
        self._places.restart()
        with _Fused(self._fake, casts), self._places, running:
            return tuple(self._run(self.inner, given))


class _Places(TorchDispatchMode):
    """Writes on the graph's nodes which operator they come from."""

    def __init__(self, walk: Walk) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.walk = walk
        self.heard: dict[int, list[str]] = {}
        """Names of the operators of each visit."""
        self._deaf = False

    def restart(self) -> None:
        """AOTAutograd runs forward more than once."""
        self.walk.restart()
        self.heard.clear()

    def copy_weight(self, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Autocast's, which belongs to no operator."""
        self._deaf = True
        copy = weight.to(dtype)
        self._deaf = False
        return copy

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run it; the nodes that this makes get its place."""
        name = operators.aten_name(func)
        if self._deaf or operators.launches_nothing(func, name):
            return func(*args, **(kwargs or {}))
        self.walk.entry()
        visit = len(self.walk.visits) - 1
        names = self.heard.setdefault(visit, [])
        names.append(name)
        with traceback.annotate({_PLACE: Place(visit, len(names) - 1)}):
            return func(*args, **(kwargs or {}))


class _Fused(Functions):
    """The eager trace's stand-ins; attention is an operator that nobody looks into."""

    def __init__(self, fake: FakeTensorMode, casts: Casts | None) -> None:
        super().__init__(None, casts)
        self._fake = fake
        self._owned: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By identity, with what it stands for, which it thus keeps."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function, apart from modes further out."""
        given = tree_map_only(torch.Tensor, self._own, (args, dict(kwargs or {})))
        if given[1].get("device") is not None:
            given[1]["device"] = "cpu"  # where all is that the model makes itself
        with _C.DisableTorchFunction():
            return super().__torch_function__(func, types, *given)

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a closure holds on the meta device (labels), on the graph's."""
        if not tensor.is_meta:
            return tensor
        if id(tensor) not in self._owned:
            with self._fake:
                self._owned[id(tensor)] = _on_cpu(tensor), tensor
        return self._owned[id(tensor)][0]

    def _fused_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        *,
        causal: bool,  # noqa: ARG002 (nothing that is kept depends on it)
    ) -> torch.Tensor:
        out: torch.Tensor = ATTENTION(query, key, value, mask)[0]
        return out


def _attention(
    q: torch.Tensor, _k: torch.Tensor, v: torch.Tensor, _mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output, token-major as flash writes it, and log-sum-exp."""
    lead, heads, rows, width = q.shape[:-3], q.shape[-3], q.shape[-2], v.shape[-1]
    out = q.new_empty(*lead, rows, heads, width).transpose(-3, -2)
    return out, q.new_empty(*lead, heads, rows, dtype=torch.float32)


def _attention_backward(
    _grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_kept: Any
) -> tuple[torch.Tensor, ...]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _back(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return (*torch.ops.raysim.scaled_dot_product_attention_backward(grad, *ctx.saved_tensors), None)


_library: Any = torch.library.Library  # which torch has not typed
_LIBRARY = _library("raysim", "DEF")
_LIBRARY.define(
    "scaled_dot_product_attention(Tensor q, Tensor k, Tensor v, Tensor? mask) -> (Tensor, Tensor)"
)
_LIBRARY.define(
    "scaled_dot_product_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, "
    "Tensor? mask, Tensor out, Tensor lse) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.impl("scaled_dot_product_attention", _attention, "Meta")
_LIBRARY.impl("scaled_dot_product_attention_backward", _attention_backward, "Meta")
torch.library.register_autograd(
    "raysim::scaled_dot_product_attention", _back, setup_context=_keep, lib=_LIBRARY
)
ATTENTION: Any = torch.ops.raysim.scaled_dot_product_attention.default
"""Fused attention, which keeps what it reads, its output and a number per row."""
