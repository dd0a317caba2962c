"""What torch's functions do in a training worker: tensors of real numbers have shapes only.

Real counterpart: torch on the worker's GPU. Floating-point tensors live on the meta device,
wherever they were asked for; integers that are made on the CPU are real (indices, labels, token
ids), until they are moved to a GPU. What asks for the value of a tensor without one gets ``nan``, 0
or False, and is told so once.

Between a model's forward and ``backward`` the functions that make the loss are written down, so
that the tracer can run them again. Once a model is no longer run, functions of tensors without
values are not either: their results have the shapes that they had of such shapes before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors  # what DeviceContext overrides
from torch.utils._pytree import tree_map_only

from raysim.rayapi.shapes import counts, devices
from raysim.rayapi.shapes.alive import Alive
from raysim.rayapi.shapes.cpu_work import (
    CpuCounting,
    is_on_cpu,
    leaves_cpu,
    stays_on_cpu,
    unpriced,
)
from raysim.rayapi.shapes.devices import on_gpu
from raysim.rayapi.shapes.held import held_among
from raysim.rayapi.shapes.host_values import key_of_values
from raysim.rayapi.shapes.known import (
    MASKED,
    META,
    constant,
    counted,
    follow,
    hand_on_values,
    is_in_place,
    kept_constant,
    lets_pass,
    mixed,
    of_values,
    places,
    some_known,
    to_device,
    with_numbers,
)
from raysim.rayapi.shapes.made import BY_VALUE, default_device, is_blank, placed
from raysim.rayapi.shapes.numbers import NAN, SAID, SAID_OF_ANSWERS, Unknown
from raysim.rayapi.shapes.roles import again, is_part, key_of_function, linked, shapes_of
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.tracing.operators import tensors
from raysim.tracing.peers import attend
from raysim.tracing.storages import PLAIN, key_of
from raysim.tracing.walk import compiled_function, in_compiled_function

if TYPE_CHECKING:
    from raysim.rayapi.shapes.steps import Steps

_CONSTRUCTORS = frozenset(_device_constructors())
_T = torch.Tensor
_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_INDEXING = (_T.__getitem__, _T.__setitem__)
_UNKNOWN: dict[Any, Callable[[torch.Tensor], Any]] = {
    _T.item: lambda t: no_value(t.dtype),
    _T.tolist: lambda t: _filled(t).tolist(),
    _T.numpy: lambda t: _filled(t).numpy(),
    _T.__float__: lambda _: NAN,
    _T.__int__: lambda _: 0,
    _T.__index__: lambda _: 0,
    _T.__bool__: lambda _: False,
    _T.__array__: lambda t: _filled(t).numpy(),
}


def no_value(dtype: torch.dtype) -> Any:
    """What is said for one that nobody knows."""
    if dtype.is_floating_point:
        return Unknown(NAN)
    return False if dtype == torch.bool else 0


def _address(tensor: torch.Tensor) -> int:
    """What tells it from other tensors, of which none has any."""
    return key_of(tensor) + int(tensor.storage_offset()) * tensor.element_size()


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    fill = no_value(tensor.dtype)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").fill_(fill)


class Tape:
    """What ran between a forward and its backward; run again by the tracer."""

    def __init__(self, outputs: Any) -> None:
        self._outputs = list(tensors(outputs))
        self._calls: list[tuple[Callable[..., Any], Any, Any, Any, bool]] = []
        self._held: set[int] = set()
        self._made: dict[int, torch.Tensor] = {}

    def note(self, func: Callable[..., Any], args: Any, kwargs: Any, out: Any) -> None:
        """One function of torch has run."""
        self._calls.append((func, args, kwargs, out, in_compiled_function()))

    def replay(
        self, loss: torch.Tensor, outputs: Any, *, to: torch.device | None = None
    ) -> torch.Tensor:
        """The loss again, of other outputs; what else it is made of is moved ``to`` a device."""
        new = dict(zip(map(id, self._outputs), tensors(outputs), strict=True))
        for func, args, kwargs, out, is_compiled in self._calls:
            there = tree_map_only(torch.Tensor, partial(_instead, new, to), (args, kwargs))
            with compiled_function() if is_compiled else nullcontext():
                made = func(*there[0], **there[1])
            for before, now in zip(tensors(out), tensors(made), strict=False):
                new[id(before)] = hand_on_values(before, now)
        found: torch.Tensor = new.get(id(loss), loss)
        self._made = new
        return found

    def hold(self) -> None:
        """Backward begins: what the script has in a variable stays until it is over."""
        given = {id(t) for t in self._outputs}
        made = (t for *_, out, _ in self._calls for t in tensors(out) if id(t) not in given)
        self._held = held_among(made)

    def held(self) -> list[torch.Tensor]:
        """Of the latest replay, what the script has in a variable."""
        return [self._made[key] for key in self._held if key in self._made]


def _instead(
    new: Mapping[int, torch.Tensor], to: torch.device | None, tensor: torch.Tensor
) -> torch.Tensor:
    found = new.get(id(tensor))
    if found is None:
        found = tensor if to is None else tensor.detach().to(to)
    return found


class TapeMode(TorchFunctionMode):
    """Notes every function of torch."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run it, and write it down."""
        out = func(*args, **(kwargs or {}))
        stays = func in _MOVES and out is args[0]
        if not stays and isinstance(out, torch.Tensor | tuple | list):
            self.tape.note(func, args, kwargs or {}, out)
        return out


class ShapesMode(TorchFunctionMode):
    """Of one worker."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps
        self.tape: Tape | None = None
        self.tracing = False
        """The tracer knows values of its own."""
        self.on_host = False
        """What runs is a loader's (``shapes.loader``): tensors that stay on the CPU are real."""
        self.counting: CpuCounting | None = None
        """Of what runs, what it takes the host."""
        self.heard, self.generates = 0, False  # calls so far; token after token, as others have
        self.types_count = True
        """Nobody casts what the model under way is given (``shapes.devices``)."""
        self.alive = Alive()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch, on shapes."""
        if transforms() is not None:  # vmap's tensors have no storage of their own
            return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "__get__":  # asked for very often
            return self._attribute(func, args)
        self.heard += 1
        if func == _SET_DATA:
            devices.takes_data(*args)
        if self.steps.optimizers.passes_over(name):
            return args[0]  # in place, of values that nobody knows
        values = None if kwargs or self.tape is not None else key_of_values(func, args)
        if values is not None:
            return self.steps.own.on_values(values, func, args)
        given = dict(kwargs or {})
        own, inside = self.steps.own, self.tracing or self.steps.inside
        makes = func in _CONSTRUCTORS
        if makes and given.get("device") is None and (default := default_device()) is not None:
            given["device"] = default
        here = not self.tracing and is_on_cpu(args, given, makes=makes)
        on_cpu = here and not inside
        loose = self.steps.loose.takes(args, given)
        if own.counts and not loose:
            key = key_of_function(func, args, given)
            run = partial(self._answer, func, args, given, name)
            out = own.call(key, run, on_cpu=on_cpu)
        else:
            out = self._answer(func, args, given, name)
        if loose:
            self.steps.loose.note(func, args, given, out)
        return stays_on_cpu(out) if here else out

    def _attribute(self, func: Any, args: Sequence[Any]) -> Any:
        """One of a tensor's; it may be a tensor made of it: ``T``, ``mT``, ``real``, ``data``."""
        out = func(*args)
        if func in devices.ASKED and not self.tracing:
            return devices.said(func, args[0], out, self.steps.worker.devices[0])
        if out is None and func == _GRAD:
            return self._gradient(args[0])
        if isinstance(out, torch.Tensor) and not self.tracing:
            devices.hand_on_view(args[0], out)
        if isinstance(out, torch.Tensor) and self.tape is not None:
            self.tape.note(func, args, {}, out)
        elif isinstance(out, torch.Tensor) and self.steps.loose.takes(args, ()):
            self.steps.loose.note(func, args, {}, out)
        return out

    def _answer(self, func: Any, args: Sequence[Any], given: dict[str, Any], name: str) -> Any:
        if func in _CONSTRUCTORS:
            return self._constructed(func, args, given)
        if func in _MOVES:
            return self._moved(func, args, given)
        if func is _T.pin_memory:
            return self.steps.own.pinned(args[0])
        if func is _T.record_stream:
            return None  # there is one stream
        if func is _T.data_ptr and args[0].is_meta:
            return _address(args[0])
        if func is _T.share_memory_ and args[0].is_meta:
            return args[0]  # as on a GPU, whose memory other processes can open anyway
        if func is torch._is_all_true and args[0].is_meta:  # noqa: SLF001
            return self._holds(args[0])
        if func is _T.__format__ and args[0].is_meta and not args[0].dim():
            return format(self._unknown(args[0], _UNKNOWN[_T.item]), args[1])
        answer = _UNKNOWN.get(func)
        if answer is not None and not self.tracing and args[0].is_meta:
            return self._unknown(args[0], answer)
        if given.get("device") is not None and (on_gpu(given["device"]) or is_blank(func, args)):
            given["device"] = META  # ``empty_like``, as ``Module.to_empty`` calls it
            given.pop("pin_memory", None)
        out = self._on_values(func, args, given, name)
        if self.tape is None and self._watches:
            self.alive.follow(args, out)
        return out

    def _constructed(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        device = kwargs.get("device")
        there = device is not None and on_gpu(device)
        given = placed(func, kwargs, on_host=self.on_host)
        args = with_numbers(args)
        out: torch.Tensor = self._noted(func, args, given, made=not self.on_host)
        if there and func.__name__ in BY_VALUE:
            self.steps.own.copied(out)
        if there and self.tape is None:
            self._on_gpu(out)
        if there and not self.tracing:
            devices.place(out, device, self.steps.worker.devices[0])
        if self.counting is not None and args and isinstance(args[0], tuple | list):
            self.counting.read(out.numel() if func.__name__ in BY_VALUE else 0)
        return (kept_constant if self.tracing else counted)(func, args, given, out)

    @property
    def _watches(self) -> bool:
        """Whether what is made now is the script's own, and not known to the role under way."""
        steps = self.steps
        return not (self.tracing or steps.inside or steps.steady or steps.optimizers.updating)

    def _on_gpu(self, tensor: torch.Tensor) -> torch.Tensor:
        """One that was just made there."""
        tensor.raysim_on_gpu = True  # type: ignore[attr-defined]
        if self._watches:
            self.alive.note(tensor)
        return tensor

    def _on_values(self, func: Any, args: Any, kwargs: Any, name: str) -> Any:
        """On shapes, and on the integers beside them where all are known."""
        if func is _ATTENTION and hasattr(next(tensors((args, kwargs))), "placements"):
            return attend(func, *args, **kwargs)
        if func is torch.autograd.grad and self._of_weights(args, kwargs):
            return tuple(self._gradient(w) for w in tensors(args[1]))
        steps = self.steps
        alike = steps.steady or self.generates
        if self.tape is not None:
            alike = steps.several.pending and not (steps.inside or self.tracing)
        remembers = alike and not (self.tracing or steps.own.learns) and self.counting is None
        if counts.asks(func, args):
            self.steps.say(MASKED)
        ordinary: Callable[..., Any] = self._remembered if remembers else self._noted
        if self.tracing:
            if counts.picks(func, args):
                args = (args[0], counts.picked(args[1]), *args[2:])
            return ordinary(func, args, kwargs)
        if not remembers:
            types_count = self.types_count and self.steps.half is None
            devices.check(func, args, kwargs, types_count=types_count)
        masked = func in _INDEXING and lets_pass(args[1])
        picks = func is _T.__getitem__ or any(t.requires_grad for t in tensors(args[2:]))
        if masked and picks:  # places, or their gradients
            self.steps.say(MASKED)
        if not masked and not some_known(args):
            out = ordinary(func, args, kwargs)
            constant(func, name, args, kwargs, out)
            return out
        try:
            out = ordinary(func, args, kwargs)
        except (NotImplementedError, RuntimeError):  # a shape that depends on values
            if func not in _INDEXING:
                return self._of_values(func, args, kwargs)
            args = (args[0], places(args[1]), *args[2:])
            out = self._noted(func, args, kwargs)
        follow(func, args, kwargs, out, in_place=is_in_place(name))
        constant(func, name, args, kwargs, out)
        return out

    def _of_values(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Of a shape that nobody knows without them."""
        found = of_values(func, args, kwargs)
        if found is None:
            return counts.run(func, args, kwargs)  # which raises what shapes alone have raised
        (out,) = tree_map_only(torch.Tensor, to_device, found)
        if self.tape is not None:
            self.tape.note(func, args, kwargs, out)
        return out

    def _remembered(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A tensor of the shape that the function has made of such shapes before."""
        given = () if self.tape is None else tuple(tensors((args, kwargs)))
        asks = torch.is_grad_enabled() and tuple(t.requires_grad for t in given)
        half = torch.is_autocast_enabled("cuda")
        try:
            key = (func, shapes_of(args), shapes_of(kwargs.items()), asks, half)
            found = self.steps.shared.shapes.get(key)
        except TypeError:  # something that cannot be compared
            return self._noted(func, args, kwargs)
        if found is not None:
            out = torch.empty(found.shape, dtype=found.dtype, device=META)
            if self.tape is not None:
                if found.requires_grad:
                    out = linked(found, [t for t in given if t.requires_grad])
                self.tape.note(func, args, kwargs, out)
            return out
        out = self._noted(func, args, kwargs)
        if type(out) in PLAIN and out.is_meta and not is_part(out, args):
            self.steps.shared.shapes[key] = again(out)
        return out

    def _noted(self, func: Any, args: Any, kwargs: Any, *, made: bool = False) -> Any:
        try:
            out = func(*args, **kwargs)
        except RuntimeError as error:
            if "SparseMeta" in str(error):
                raise NotEmulatedError(
                    "a sparse tensor on a GPU",
                    "the same by indices (gathers and index_add_ over edges), or a dense tensor",
                ) from None
            if mixed(args, kwargs):
                args, kwargs = tree_map_only(torch.Tensor, to_device, (args, kwargs))
                out = counts.run(func, args, kwargs)
            elif (some_known(args) and not self.tracing) or (
                out := counts.without_kernel(func, args, kwargs)
            ) is None:
                raise
        out = counts.counted(func, args, out)
        if not self.tracing:
            devices.hand_on(args, kwargs, out)
        if made and func.__name__ in BY_VALUE and kwargs.get("device") != META:
            out = to_device(out) if out.is_floating_point() else out
        if self.tape is not None and isinstance(out, torch.Tensor | tuple | list):
            self.tape.note(func, args, kwargs, out)
        return out

    def _unknown(self, tensor: torch.Tensor, answer: Callable[[torch.Tensor], Any]) -> Any:
        if self.steps.optimizers.updating:
            return answer(tensor)
        known = getattr(tensor, "raysim_values", None)
        if answer is _UNKNOWN[_T.numpy] and tensor.requires_grad and self.steps.worker.answers:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. "
                "Use tensor.detach().numpy() instead."
            )
        self.steps.synchronize()
        if known is not None:
            return _value_of(answer, known)
        self.steps.say(SAID_OF_ANSWERS if self.steps.worker.answers else SAID)
        return answer(tensor)

    def _of_weights(self, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
        """Gradients of a model's weights, of which none is asked for: a backward."""
        steps = self.steps
        weights = all(isinstance(t, torch.nn.Parameter) and t.is_leaf for t in tensors(args[1]))
        if steps.inside or self.tracing or given.get("create_graph") or not weights:
            return False
        steps.backward(steps.loose.forward(next(tensors(args[0]))))
        return steps.optimizers.has_gradients

    def _gradient(self, of: torch.Tensor) -> torch.Tensor | None:
        """What a backward has made, which is nowhere until somebody asks for it."""
        steps = self.steps
        busy = steps.inside or self.tracing or steps.optimizers.updating
        if busy or not (
            steps.optimizers.has_gradients and of.is_meta and of.is_leaf and of.requires_grad
        ):
            return None
        steps.update_by_hand()
        if type(of) not in PLAIN:
            return torch.empty_like(of, requires_grad=False)
        # of a shape ``empty_like`` is Python, which takes 40 times as long
        return torch.empty_strided(of.shape, of.stride(), dtype=of.dtype, device=META)

    def _holds(self, condition: torch.Tensor) -> bool:
        """What a library asks of values before it takes them (``torch.distributions``)."""
        known = getattr(condition, "raysim_values", None)
        if not self.tracing:
            self.steps.synchronize()
        return known is None or bool(known.all())

    def _moved(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """``to``, ``type_as``, ``cuda``, ``cpu``: a GPU's tensors are shapes."""
        tensor: torch.Tensor = args[0]
        if func is _T.cpu:
            return self._on_host(tensor)
        if func is _T.cuda:
            return self._to_gpu(tensor, next(iter(args[1:]), kwargs.get("device")) or "cuda")
        said = [*args[1:], kwargs.get("device"), kwargs.get("dtype"), kwargs.get("other")]
        like = next((a for a in said if isinstance(a, torch.Tensor)), None)
        if like is not None:
            said = ["cpu" if devices.is_placed_on_cpu(like) else like.device, like.dtype]
        for dtype in {a for a in said if isinstance(a, torch.dtype)} - {tensor.dtype}:
            before, tensor = tensor, self._noted(_T.to, [tensor, dtype], {})
            follow(_T.to, [before, dtype], {}, tensor, in_place=False)
        form = kwargs.get("memory_format", torch.preserve_format)
        places = [a for a in said if devices.is_device(a)]
        if any(map(on_gpu, places)):
            return self._to_gpu(tensor, places[0], form)
        if form is not torch.preserve_format:
            tensor = self._noted(_T.contiguous, [tensor], {"memory_format": form})
        return self._on_host(tensor) if places and tensor.is_meta else tensor

    def _to_gpu(
        self, tensor: torch.Tensor, device: Any, form: torch.memory_format = torch.preserve_format
    ) -> torch.Tensor:
        """Copied as it lies; the GPU lays it out anew."""
        if not self.steps.inside:
            self.steps.own.copied(tensor)
        with unpriced(self.counting):
            if form is not torch.preserve_format:
                tensor = self._noted(_T.contiguous, [tensor], {"memory_format": form})
            if tensor.requires_grad and not tensor.is_leaf:
                tensor = self._noted(_T.view_as, [tensor] * 2, {})
            made = self._on_gpu(leaves_cpu(to_device(tensor)))
        devices.place(made, device, self.steps.worker.devices[0])
        return made

    def _on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Waited for; with values where they are known."""
        if devices.is_placed_on_cpu(tensor):
            return tensor
        self.steps.synchronize()
        self.steps.worker.copies(tensor.nbytes, "d2h", pinned=False)
        known: torch.Tensor = getattr(tensor, "raysim_values", tensor)
        if known is not tensor or self.tracing:
            return known
        as_it_is = tensor.requires_grad
        made = self._noted(_T.view_as, [tensor] * 2, {}) if as_it_is else tensor.detach()
        return devices.leaves_gpu(made)


transforms: Any = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001
_GRAD: Any = vars(torch._C.TensorBase)["grad"].__get__  # noqa: SLF001
_SET_DATA: Any = vars(torch._C.TensorBase)["data"].__set__  # noqa: SLF001
_MOVES = frozenset([_T.to, _T.type_as, _T.cuda, _T.cpu])


def _value_of(answer: Callable[..., Any], known: torch.Tensor) -> Any:
    """What the function says of values that are known."""
    name = next(f.__name__ for f, a in _UNKNOWN.items() if a is answer)
    return getattr(known, name)()
