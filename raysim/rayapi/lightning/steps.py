"""``training_step`` and its like: the modules that they call are the model.

Real counterpart: ``pytorch/strategies/strategy.py`` of lightning 2.4 to 2.6, which sends the batch
through the wrapper (``DistributedDataParallel(module)``) into ``module.training_step``. That method
is the user's own code (it logs, it counts), so it runs in every step. One module that it calls is a
model as in any script, trained as the strategy has wrapped the LightningModule: its table may be
known, and what follows is the loss. Of several, the whole method is one
model; of a step that calls backward itself, each backward is (``shapes.several``).
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from raysim.rayapi.shapes.here import cpu_steps_here
from raysim.rayapi.shapes.roles import Recomputing, again

if TYPE_CHECKING:
    from raysim.rayapi.shapes.cpu_steps import CpuSteps
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

_CONTEXTS = {
    "training_step": "train_step_context", "validation_step": "val_step_context",
    "test_step": "test_step_context", "predict_step": "predict_step_context",
}  # fmt: skip
"""Of the precision's plugin, around each."""


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``pytorch.strategies.strategy``."""
    strategy: Any = module.Strategy
    for name in _CONTEXTS:
        r.around(strategy, name, partial(_step, name))
    r.around(strategy, "training_step", _cpu_step, cpu_steps_here)


def _step(name: str, _real: Any, steps: Steps, strategy: Any, *args: Any, **kwargs: Any) -> Any:
    """The user's method itself: what wraps its module is known."""
    module = strategy.lightning_module
    steps.within = strategy.model
    with getattr(strategy.precision_plugin, _CONTEXTS[name])():
        if name == "training_step" and not module.automatic_optimization:
            return module.training_step(*args, **kwargs)
        return _of(steps, module).run(name, args, kwargs)


def _cpu_step(_real: Any, steps: CpuSteps, strategy: Any, *args: Any, **kwargs: Any) -> Any:
    """Without GPUs, where modules really run, the method is the model however many it calls."""
    module = strategy.lightning_module
    steps.within = strategy.model
    with strategy.precision_plugin.train_step_context():
        if not module.automatic_optimization:
            return module.training_step(*args, **kwargs)
        known = steps.worker.globals.setdefault(StepModel, {})
        if id(module) not in known:
            known[id(module)] = _model(module, "training_step")
        model: StepModel = known[id(module)]
        model.further = Kept((args[1:], kwargs))
        return steps.forward(
            lambda *_a, **_k: module.training_step(*args, **kwargs), model, args[:1], {}
        )


def _of(steps: Steps, module: Any) -> Whole:
    known = steps.worker.globals.setdefault(Whole, {})
    if id(module) not in known:
        known[id(module)] = Whole(steps, module)
    found: Whole = known[id(module)]
    return found


class Whole:
    """A worker's LightningModule, of whose modules one step may call several."""

    def __init__(self, steps: Steps, module: Any) -> None:
        self._steps = steps
        self._module = module  # kept, as its identity is what it is known by
        self._models: dict[str, StepModel] = {}
        """Methods that call several modules, as models."""
        self._answers: dict[Any, Any] = {}
        """What modules have answered, by what they were asked."""
        self._method = ""
        """Under way."""
        self._first: Any = None
        """The module that it called first."""
        self._recomputes: Recomputing = ""
        """Modules that were run have checkpointed activations."""

    def run(self, method: str, args: Any, kwargs: Any) -> Any:
        """One call of the user's method."""
        steps = self._steps
        self._method, self._first = method, None
        steps.whole, steps.steady = self, steps.steady or method in self._models
        try:
            out = getattr(self._module, method)(*args, **kwargs)
        finally:
            steps.whole = None
        model = self._models.get(method)
        if model is None:
            return out
        model.further = Kept((args[1:], kwargs))

        def has_run(*_args: Any, **_kwargs: Any) -> Any:
            steps.recomputes = self._recomputes
            return out

        return steps.forward(has_run, model, args[:1], {})

    def takes(self, module: Any) -> bool:
        """Whether a module that is called is a part of the model."""
        if self._method in self._models:
            return True
        if self._first is None or self._first is module:
            self._first = module
            return False
        self._recomputes = self._steps.recomputes
        if torch.is_grad_enabled():
            self._steps.forget_forward()
        self._models[self._method] = _model(self._module, self._method)
        return True

    def call(self, inside: Any, run: Any, module: Any, key: Any, args: Any, kwargs: Any) -> Any:
        """A part's answer."""
        known = self._answers.get(key)
        if known is None:
            out = inside(run, module, args, kwargs)
            self._recomputes = self._recomputes or self._steps.recomputes
            self._answers[key] = again(out)
            return out
        return again(known)


class Kept:
    """What a copy of a module has too, and not a copy of it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __deepcopy__(self, _memo: Any) -> Kept:
        return self


class StepModel(torch.nn.Module):
    """A method of a LightningModule as the model's forward; the tracer runs a copy."""

    def __init__(self, module: Any, method: str) -> None:
        super().__init__()
        self.module = module
        self.method = method
        self.further = Kept(((), {}))
        """Arguments after the batch."""
        self.trainer = Kept(module.trainer)

    def forward(self, batch: Any) -> Any:
        """One call, that nobody hears of."""
        from torchmetrics import Metric

        module, (args, kwargs) = self.module, self.further.value
        module.log = module.log_dict = lambda *_a, **_k: None
        module._trainer = self.trainer.value  # noqa: SLF001  (what sets it goes down to children)
        for each in module.modules():
            if isinstance(each, Metric):
                vars(each)["forward"] = _no_metric
        return getattr(module, self.method)(batch, *args, **kwargs)


def _model(module: Any, method: str) -> StepModel:
    """Known by the name of the user's class."""
    model = StepModel(module, method)
    model.__class__ = type(type(module).__name__, (StepModel,), {})
    return model


def _no_metric(*_args: Any, **_kwargs: Any) -> torch.Tensor:
    """A number of predictions: no part of the model."""
    return torch.zeros(())
