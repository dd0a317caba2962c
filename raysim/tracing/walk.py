"""Which module runs, which layer it belongs to, and where its parameters are.

ZeRO-3 fetches a module's parameters when its forward begins, so an entry with parameters opens
there; what the module computes between calls of its children goes to entries of its own. A module
that becomes a layer makes a ``Visit``; what runs between two layers is a visit without a path.

Not modelled: modules called from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from raysim.models.table import Parameter
from raysim.tracing.operators import Call
from raysim.tracing.storages import local_part

LOSS = "<loss>"
"""Path of the loss callable: beside the model, not in it."""
COMPILED = "raysim_compiled"
"""Attribute of a module that ``torch.compile`` was given."""
_INSIDE: ContextVar[bool] = ContextVar("_INSIDE", default=False)
"""Whether a compiled function runs."""


@contextmanager
def compiled_function() -> Iterator[None]:
    """What runs inside is a region of ``torch.compile``."""
    before = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(before)


def in_compiled_function() -> bool:
    """Whether one runs."""
    return _INSIDE.get()


@dataclass(slots=True)
class Entry:
    """A stretch of one module's forward; ``parameters`` have their full names."""

    path: str
    cls: str
    parameters: list[Parameter] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


@dataclass(slots=True)
class Visit:
    """One call of a module that is a layer, or (path None) what runs between two of them."""

    path: str | None
    cls: str = ""
    entries: list[Entry] = field(default_factory=list)
    input_shape: tuple[int, ...] = ()
    """Of the first tensor handed in."""
    output_shape: tuple[int, ...] = ()

    @property
    def parameters(self) -> Iterator[Parameter]:
        """Parameters of all entries."""
        return (p for entry in self.entries for p in entry.parameters)

    @property
    def calls(self) -> Iterator[Call]:
        """Operators of all entries."""
        return (c for entry in self.entries for c in entry.calls)


class Walk:
    """The modules' side of a trace: visits in order of execution.

    Parameters
    ----------
    model
        A copy that may carry hooks.
    cuts
        Modules that are layers.
    weights
        Type of most of its weights; those of another say how wide they are.
    """

    def __init__(
        self, model: torch.nn.Module, cuts: Iterable[torch.nn.Module], weights: torch.dtype
    ) -> None:
        self.visits: list[Visit] = []
        self._weights = weights
        self._cuts = {id(m) for m in cuts}
        self._current: Visit | None = None
        self._stack: list[tuple[str, str, bool]] = []
        """Path, class, and whether it is compiled, of the modules that run."""
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._paths: dict[int, list[str]] = {}
        """Every path of a module object; its n-th call goes by the n-th."""
        self._runs: dict[int, int] = {}
        self.owners: dict[int, str] = {}
        """First name of each parameter object: the one that counts."""
        self._seen: set[str] = set()
        self._seen_objects: set[int] = set()
        for path, module in self._modules.items():
            self._paths.setdefault(id(module), []).append(path)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.owners.setdefault(id(parameter), name)
        for module in model.modules():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(self._leave)

    @property
    def where(self) -> str:
        """Path of the module that runs."""
        return self._stack[-1][0] if self._stack else ""

    @property
    def in_norm(self) -> bool:
        """Whether a normalisation module runs."""
        return bool(self._stack) and "Norm" in self._stack[-1][1]

    @property
    def in_compiled(self) -> bool:
        """Whether a region of ``torch.compile`` runs."""
        return _INSIDE.get() or (bool(self._stack) and self._stack[-1][2])

    def entry(self) -> Entry:
        """Where an operator that runs now belongs."""
        path, cls, _ = self._stack[-1] if self._stack else (LOSS, "Loss", False)
        entries = self._visit().entries
        if not entries or entries[-1].path != path:
            entries.append(Entry(path, cls))
        return entries[-1]

    def restart(self) -> None:
        """Another run of the model."""
        self.visits.clear()
        self._runs.clear()
        self._current = None

    def use(self, parameter: torch.nn.Parameter) -> None:
        """Note a parameter read while no call of its module made it known.

        ``nn.MultiheadAttention`` uses ``out_proj.weight`` so.
        """
        if id(parameter) not in self._seen_objects:
            path = self.owners[id(parameter)].rpartition(".")[0]
            self._visit().entries.append(self._declare(path))

    def unused(self) -> list[Entry]:
        """Entries of the parameters that nothing used."""
        left = []
        for path, module in self._modules.items():
            names = (
                f"{path}.{local}" if path else local
                for local, _ in module.named_parameters(recurse=False, remove_duplicate=False)
            )
            if any(name not in self._seen for name in names):
                left.append(self._declare(path))
        return left

    def _visit(self) -> Visit:
        if self._current is None:
            self._current = Visit(None)
            self.visits.append(self._current)
        return self._current

    def _declare(self, path: str) -> Entry:
        """An entry with a module's own parameters; tied where an earlier name owns them."""
        module = self._modules[path]
        entry = Entry(path, class_name(module))
        for local, p in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{path}.{local}" if path else local
            owner = self.owners.get(id(p), name)  # AOTAutograd puts others in their place
            first = name == owner and name not in self._seen
            self._seen.add(name)
            self._seen_objects.add(id(p))
            entry.parameters.append(
                Parameter(
                    name=name,
                    shape=tuple(local_part(p).shape),
                    tied_to=None if first else owner,
                    trainable=p.requires_grad,
                    expert=is_expert(p),
                    among=shared_among(p),
                    stored_bytes=None if p.dtype == self._weights else float(p.element_size()),
                )
            )
        return entry

    def _enter(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        run = self._runs.get(id(module), 0)
        self._runs[id(module)] = run + 1
        paths = self._paths[id(module)]
        path, cls = paths[min(run, len(paths) - 1)], class_name(module)
        if id(module) in self._cuts:
            self._current = Visit(path, cls, input_shape=first_shape((args, kwargs)))
            self.visits.append(self._current)
        compiled = self.in_compiled or getattr(module, COMPILED, False)
        self._stack.append((path, cls, compiled))
        entry = self._declare(path)
        if entry.parameters:
            self._visit().entries.append(entry)

    def _leave(self, module: torch.nn.Module, _: Any, out: Any) -> None:
        self._stack.pop()
        if id(module) in self._cuts and self._current is not None:
            self._current.output_shape = first_shape(out)
            self._current = None


def is_exported(module: torch.nn.Module) -> bool:
    """Whether ``torch.export`` has made it, a graph, of another module."""
    return isinstance(getattr(module, "_ty", None), str)


def class_name(module: torch.nn.Module) -> str:
    """Of its class, or of the one that it was exported from."""
    if is_exported(module):
        return str(module._ty).rpartition(".")[2]  # noqa: SLF001  (its only door)
    return type(module).__name__


def is_expert(parameter: torch.Tensor) -> bool:
    """Whether only some ranks hold it, as DeepSpeed marks experts' parameters."""
    return not getattr(parameter, "allreduce", True)


def shared_among(parameter: torch.Tensor) -> int:
    """Ranks that share an expert's mixture, by the name DeepSpeed gives their group; 0: no such."""
    kind, _, size = str(getattr(parameter, "group_name", "")).rpartition("_")
    return int(size) if kind == "ep_size" and is_expert(parameter) else 0


def first_shape(tree: object) -> tuple[int, ...]:
    """Shape of the first tensor in arguments or results; empty if there is none."""
    return next((tuple(t.shape) for t in tree_leaves(tree) if isinstance(t, torch.Tensor)), ())
