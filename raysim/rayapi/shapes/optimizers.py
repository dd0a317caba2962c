"""Optimizers of training scripts: which known one each is, and the state that its first step makes.

Real counterpart: ``torch.optim``. A step is priced by the optimizer's kind. A class of the script's
own (a Muon, a Shampoo) runs twice, on shapes: its first step makes its states, the second is heard,
operator by operator; from then on that is what the script has the GPU do beside each step, and its
collectives' time passes (``own_work``). In memory it is a known one that keeps as many states.

Not modelled: collectives of such a class that run beside what it computes; its temporaries.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from raysim.perf.optimizer import is_known
from raysim.tracing.operators import tensors
from raysim.training.settings.deepspeed import Optimizer

if TYPE_CHECKING:
    from raysim.rayapi.shapes.steps import Steps

SPARSE = "raysim_sparse"
"""Marks a table whose look-ups make sparse gradients."""
_LIKE = {
    "Adadelta": "Adam", "Adamax": "Adam", "Rprop": "Adam", "SparseAdam": "Adam",
    "ASGD": "Adagrad", "RMSprop": "Adagrad",
}  # fmt: skip
"""Of torch's optimizers, those whose step is taken for that of another with as many states."""
_TEMPORARIES = {
    "SGD": 0, "Adadelta": 2, "Adagrad": 2, "Adam": 1, "AdamW": 1, "Adamax": 1, "ASGD": 1,
    "NAdam": 1, "RAdam": 1, "RMSprop": 1, "Rprop": 2,
}  # fmt: skip
"""Tensors as large as all parameters that ``_multi_tensor_*`` has at once (torch 2.11 to 2.13)."""
_PACKAGES = frozenset([
    "torch", "torch_optimizer", "torchao", "deepspeed", "apex", "bitsandbytes", "transformers",
    "transformer_engine", "lion_pytorch", "megatron", "pytorch_optimizer", "timm", "raysim",
])  # fmt: skip
"""Whose optimizers are known by their names; a script's own Muon is what it computes."""
_DECAYS_BEFORE = frozenset(["Adagrad", "Adam", "AdamW"])
"""Whose weight decay takes no more; others add it to the gradients in a copy that stays."""


class Optimizers:
    """Of one worker."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._known: dict[int, tuple[Any, Optimizer]] = {}
        """By identity, with the optimizer, which thus keeps it."""
        self._begun: dict[int, None] = {}
        """Those that have their state."""
        self._works: dict[int, Any] = {}
        """Of the script's own, what a step has the GPU do, and nanoseconds of its collectives."""
        self.has_gradients = False
        """A backward has made gradients that nobody has zeroed."""
        self.made: weakref.WeakSet[Any] = weakref.WeakSet()
        self.updating = False
        """One runs: what it asks of values is not the program's."""
        self.hears = False
        """One of the script's own runs, to be heard."""

    def of(self, run: Callable[..., Any], optimizer: Any) -> Optimizer:
        """What its step is priced as; ``run`` is the step itself."""
        known = self._known.get(id(optimizer))
        if known is None:
            own = kind_of(optimizer) is None
            if own:
                self.begin(run, optimizer)
            found = self._with_sparse(optimizer_of(optimizer, stepped=own), optimizer)
            found = replace(found, heard=id(optimizer) in self._works)
            if own:
                name = type(optimizer).__name__
                how = "by the operators of its step" if found.heard else f"as {found.type}"
                self._steps.say(f"{name} is priced {how}; {found.type} keeps as many states")
            known = self._known[id(optimizer)] = optimizer, found
        return known[1]

    def _with_sparse(self, found: Optimizer, optimizer: Any) -> Optimizer:
        """Beside a ``SparseAdam``, the other one has what is dense."""
        kinds = {_named(o) == "SparseAdam": o for o in (*self.made, optimizer)}
        if True not in kinds:
            return found
        if False in kinds and kinds[True] is optimizer:
            found = optimizer_of(kinds[False])
        return replace(found, sparse="SparseAdam")

    def states(self) -> Iterator[torch.Tensor]:
        """Of all that have stepped; some, as Adagrad, make them before."""
        for optimizer, _ in self._known.values():
            yield from tensors(list(getattr(optimizer, "state", {}).values()))

    def begin(self, run: Callable[..., Any], optimizer: Any) -> None:
        """Its first step, on shapes, so that it has the state that a checkpoint holds."""
        if id(optimizer) in self._begun:
            return
        self._begun[id(optimizer)] = None
        # Shapes alone are added to nothing, and make no states of these.
        no_rows = (lambda _: None) if _named(optimizer) in {"Adagrad", "SGD"} else _no_rows
        with self._running(optimizer, no_rows):
            run(optimizer)
        if kind_of(optimizer) is None:
            self._hear(run, optimizer)

    @contextmanager
    def _running(
        self, optimizer: Any, no_rows: Callable[[torch.Tensor], torch.Tensor | None]
    ) -> Iterator[None]:
        """Its parameters have gradients of shapes alone."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        fused = [group for group in optimizer.param_groups if group.get("fused")]
        self.updating = True
        try:
            for group in fused:
                group["fused"] = False  # there is no such kernel of shapes
            for p in parameters:
                if p.requires_grad and p.is_meta:
                    p.grad = torch.empty_like(p) if not hasattr(p, SPARSE) else no_rows(p)
            yield
        finally:
            self.updating = False
            for group in fused:
                group["fused"] = True
            for p in parameters:
                p.grad = None

    def passes_over(self, name: str) -> bool:
        """Whether a function of that name changes values that nobody knows, in place."""
        changes = name.endswith("_") and not name.endswith("__")
        return self.updating and not self.hears and changes

    def _hear(self, run: Callable[..., Any], optimizer: Any) -> None:
        """A second step; one that shapes alone do not get through is priced by its states."""
        self.hears = True
        try:
            with self._running(optimizer, _no_rows):
                self._works[id(optimizer)] = self._steps.own.heard(partial(run, optimizer))
        except (RuntimeError, TypeError, ValueError, AttributeError):
            return
        finally:
            self.hears = False

    def worked(self, optimizer: Any) -> None:
        """A step of the script's own is over: what it does belongs to the loop's next step."""
        if (found := self._works.get(id(optimizer))) is not None:
            self._steps.own.again(*found)


def _no_rows(p: torch.Tensor) -> torch.Tensor:
    """A sparse gradient, which optimizers that take none refuse."""
    at = torch.empty((1, 0), dtype=torch.int64, device=p.device)
    rows = torch.empty((0, *p.shape[1:]), dtype=p.dtype, device=p.device)
    return torch.sparse_coo_tensor(
        at, rows, p.shape, is_coalesced=True, check_invariants=False
    )  # fmt: skip


def optimizer_of(optimizer: Any, *, stepped: bool = False) -> Optimizer:
    """Its kind, and whether one kernel updates all.

    A class of the script's own is taken for a known one with as many states, once it has
    ``stepped``; before, for Adam.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)  # AcceleratedOptimizer and its like
    defaults = optimizer.defaults
    own = _by_states(optimizer) if stepped or optimizer.state else "Adam"
    return Optimizer(
        type=kind_of(optimizer) or own,
        lr=float(defaults.get("lr", 1e-3)),
        fused=bool(defaults.get("fused")),
        foreach=_foreach(defaults),
        momentum=float(defaults.get("momentum", 0.0) or 0.0),
        temporaries=_temporaries(optimizer),
        on_muon=_matrices(optimizer) if kind_of(optimizer) == "Muon" else None,
    )


def _matrices(optimizer: Any) -> tuple[tuple[int, int], ...]:
    """Rows and columns of what it updates."""
    found = (p for group in optimizer.param_groups for p in group["params"] if p.dim() > 1)
    return tuple((len(p), p.numel() // len(p)) for p in found)


def _foreach(defaults: Mapping[str, Any]) -> bool:
    """Whether a step takes all tensors at once.

    Of itself ``foreach`` is on, but not where ``fused`` was said, be it False: then torch loops
    (``torch/optim/adam.py``: "if fused is None and foreach is None").
    """
    said = defaults.get("foreach")
    return defaults.get("fused") is None if said is None else bool(said)


def _temporaries(optimizer: Any) -> int | None:
    """What one of torch's that is not fused has at once; None: of another, or unknown."""
    name = _named(optimizer)
    if name not in _TEMPORARIES:
        return None
    decays = any(group.get("weight_decay") for group in optimizer.param_groups)
    apart = any(group.get("decoupled_weight_decay") for group in optimizer.param_groups)
    return _TEMPORARIES[name] + (decays and not apart and name not in _DECAYS_BEFORE)


def kind_of(optimizer: Any) -> str | None:
    """The name of a known optimizer that this is, or is taken for; None: the script's own."""
    name = _named(optimizer)
    package = type(optimizer).__module__.partition(".")[0]
    if name == type(optimizer).__name__ and package not in _PACKAGES:
        return None
    name = _LIKE.get(name, name)
    return name if is_known(name) else None


def _named(optimizer: Any) -> str:
    """The class of torch's that it is, else its own."""
    kind = type(optimizer)
    named = (c.__name__ for c in kind.__mro__ if c.__module__.startswith("torch.optim."))
    return next((n for n in named if n != "Optimizer"), kind.__name__)


def _by_states(optimizer: Any) -> str:
    """By how many tensors it keeps for each of its parameters, as large as they."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    kept = sum(
        t.numel()
        for p in parameters
        for t in optimizer.state.get(p, {}).values()
        if isinstance(t, torch.Tensor) and t.numel() == p.numel() > 1
    )
    states = round(kept / max(1, sum(p.numel() for p in parameters)))
    return ("SGD", "Adagrad")[states] if states < 2 else "Adam"
