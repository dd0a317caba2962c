"""Steps of tensors that no module holds: a regression by hand, a fit of a few matrices.

Real counterpart: autograd's graph from a loss back to its leaves. Until a script calls a module
with parameters, the functions that a gradient will go through are written down; at ``backward``
the leaves among their arguments are the parameters of a module whose forward runs those functions,
and that is trained as any other. Such functions are run each time, on shapes.

Not modelled: leaves beside a module's parameters, which its optimizer's step leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from raysim.rayapi.shapes.mode import Tape
from raysim.tracing.operators import tensors

if TYPE_CHECKING:
    from raysim.rayapi.shapes.steps import Steps

_MOST = 100_000
"""Functions without a backward after which nobody waits for one."""


class Functions(Tape):
    """Those that a gradient may go through, since the last backward."""

    def __init__(self) -> None:
        super().__init__(())
        self.leaves: list[torch.Tensor] = []
        self.inputs: list[torch.Tensor] = []
        self.loss: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def __deepcopy__(self, _memo: Any) -> Functions:
        return self

    def leading_to(self, loss: torch.Tensor) -> Functions:
        """Those that the loss is made of, and what they begin with."""
        found, wanted = Functions(), {id(loss)}
        found.loss = loss
        for call in reversed(self._calls):
            if any(id(t) in wanted for t in tensors(call[3])):
                wanted.update(id(t) for t in tensors(call[1:3]))
                found._calls.append(call)
        found._calls.reverse()
        made: set[int] = set()
        for _, args, kwargs, out, _ in found._calls:
            found._begin_with(tensors((args, kwargs)), made)
            made.update(id(t) for t in tensors(out))
        found._outputs = [*found.leaves, *found.inputs]
        return found

    def _begin_with(self, given: Iterable[torch.Tensor], made: set[int]) -> None:
        for t in given:
            if id(t) not in made:
                made.add(id(t))
                (self.leaves if t.requires_grad and t.is_leaf else self.inputs).append(t)

    def kind(self) -> Any:
        """What makes two steps alike."""
        names = tuple(getattr(call[0], "__name__", "") for call in self._calls)
        return names, tuple((t.shape, t.dtype) for t in self._outputs), len(self.leaves)


class LooseTensors(torch.nn.Module):
    """The leaves of a loss, and what makes it of them."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.functions = functions
        own = (torch.nn.Parameter(t.detach()) for t in functions.leaves)
        self.tensors = torch.nn.ParameterList(own)

    def forward(self, *given: Any) -> torch.Tensor:
        """The loss, again; of the tensors that it begins with, and which loss it is."""
        loss = self.functions.loss
        assert loss is not None, "functions that lead to no loss"
        return self.functions.replay(loss, [*self.tensors, *given[:-1]])


class Loose:
    """Of one worker."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._on = True
        self._functions = Functions()
        self._modules: dict[Any, LooseTensors] = {}

    def takes(self, args: Any, kwargs: Any) -> bool:
        """Whether a function that is called now may be part of such a loss."""
        steps = self._steps
        if not self._on or steps.inside or steps.mode.tracing or steps.optimizers.updating:
            return False
        return torch.is_grad_enabled() and any(t.requires_grad for t in tensors((args, kwargs)))

    def note(self, func: Callable[..., Any], args: Any, kwargs: Any, out: Any) -> None:
        """A function has run."""
        self._steps.own.paused = False
        if len(self._functions) >= _MOST:
            self.end()
        elif isinstance(out, torch.Tensor | tuple | list):
            self._functions.note(func, args, kwargs, out)

    def end(self) -> None:
        """A module is called: losses are its."""
        if self._on:
            self._on = False
            self._functions = Functions()

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        """Before its backward: the forward that it is of, as if a module had been called."""
        if not self._on:
            return loss
        found, steps = self._functions.leading_to(loss), self._steps
        self._functions = Functions()
        if not found.leaves:
            return loss
        kind = found.kind()
        module = self._modules.get(kind)
        if module is None:
            module = self._modules[kind] = LooseTensors(found)
        given = *found.inputs, hash(kind)
        out: torch.Tensor = steps.forward(lambda *_, **__: loss, module, given, {})
        steps.steady = False  # its functions are run each time
        return out if steps.several.on else loss
