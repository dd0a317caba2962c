"""torch's state of the thread, kept by every training worker for itself.

Real counterpart: each worker is a process, whose main thread has its own modes of torch: whether
gradients are on, what autocast is, which overrides are active, who counts operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from raysim.rayapi.huggingface.accelerate import ask_again
from raysim.rayapi.shapes.shared import Shared
from raysim.rayapi.shapes.steps import Steps

if TYPE_CHECKING:
    from raysim.rayapi.train.worker import Worker

_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)
_push, _pop = _C._push_on_torch_function_stack, _C._pop_torch_function_stack  # noqa: SLF001
_depth, _set_grad = _C._len_torch_function_stack, _C._set_grad_enabled  # noqa: SLF001
_listeners, _listener = _C._len_torch_dispatch_stack, _C._get_dispatch_stack_at  # noqa: SLF001

_contexts: Any = torch._GLOBAL_DEVICE_CONTEXT  # noqa: SLF001


class ThreadState:
    """Of one worker, while it does not run."""

    def __init__(self, modes: list[Any]) -> None:
        self._modes = modes
        self._listening: list[Any] = []
        """Of operators: what it runs is not what others run meanwhile."""
        self._grad = True
        self._half: torch.dtype | None = None
        self._default = self._outside = torch.get_default_dtype()
        self._device: Any = None
        """What ``set_default_device`` has made; its mode is among those above."""

    def enter(self) -> None:
        """It runs."""
        for mode in self._modes:
            _push(mode)
        for mode in self._listening:
            mode.__enter__()
        if not self._grad:
            _set_grad(False)
        if self._half is not None:
            torch.set_autocast_enabled("cuda", True)
            torch.set_autocast_dtype("cuda", self._half)
        self._outside = torch.get_default_dtype()
        torch.set_default_dtype(self._default)
        _contexts.device_context = self._device

    def leave(self) -> None:
        """It waits, or has ended."""
        self._listening = [_listener(i) for i in range(_listeners())]
        for mode in reversed(self._listening):
            mode.__exit__(None, None, None)
        found = [_pop() for _ in range(_depth())]
        self._modes = found[::-1]
        self._grad = torch.is_grad_enabled()
        if not self._grad:
            _set_grad(True)
        self._half = None
        if torch.is_autocast_enabled("cuda"):
            self._half = torch.get_autocast_dtype("cuda")
            torch.set_autocast_enabled("cuda", False)
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(self._outside)
        self._device = getattr(_contexts, "device_context", None)
        _contexts.device_context = None


def begin(worker: Worker, shared: Shared) -> None:
    """From here on, in its fiber, torch works on shapes."""
    steps = worker.torch_steps = Steps(worker, shared)
    worker.state_of_torch = ThreadState([steps.mode])
    worker.state_of_torch.enter()
    ask_again()
