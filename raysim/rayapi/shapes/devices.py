"""Which device a tensor is on, and torch's errors of functions that are given two of them.

Real counterparts: the guards that ``torchgen`` puts before CUDA's functions, ``TensorIterator``,
the fronts of cuBLAS and cuDNN of torch 2.13, and their words. On shapes there is one device, so
that a function answers where a GPU's raises. On the CPU is what has values, and what the mark of
``shapes.cpu_work`` is on; on the GPU is what was moved or made there by name (``cuda``, a number),
and what a function has made of it. Of other tensors nobody knows: nothing is said of them.

A product of two types of real numbers is refused as torch does, where neither autocast nor an
engine may have cast its inputs. Shapes that do not fit are refused on shapes as well, where
products, sums and convolutions have other words: here they have a GPU's.

A script reads a GPU's name, or the CPU's, from ``device``; libraries read that of shapes.
Not modelled: functions that are not named here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn import functional
from torch.utils._pytree import tree_map_only

import raysim
from raysim.rayapi.shapes.cpu_work import MARK, near
from raysim.rayapi.shapes.here import steps_here
from raysim.rayapi.shapes.plans import wrapping_in
from raysim.tracing.storages import PLAIN

if TYPE_CHECKING:
    from raysim.rayapi.shapes.steps import Steps

_PLACE = "raysim_place"
"""Where a tensor is: a GPU's name, "cpu"; "": nobody knows."""
_MADE = "raysim_made_on_cpu"
"""Of a parameter: there it stays until the script or a library moves it."""
_T = torch.Tensor
ASKED = (_T.device.__get__, _T.is_cuda.__get__, _T.is_meta.__get__)  # type: ignore[attr-defined]
"""Attributes that say where a tensor is."""
_OURS = next(iter(raysim.__path__))
_HAND_ON = frozenset([
    "device", "get_parameter_device", "get_default_device", "_get_device_with_index",
    "__torch_function__", "<genexpr>",
])  # fmt: skip
"""Of transformers and diffusers, what a model's ``device`` is made of."""
_SCRIPTS_OWN = ("torchtitan", "torchtune")
"""Libraries of recipes, which know no shapes either."""
_SAME = "Expected all tensors to be on the same device, but "
_REAL = frozenset([torch.float16, torch.bfloat16, torch.float32, torch.float64])
_NAMES: Mapping[torch.dtype, tuple[str, str]] = {
    torch.float16: ("Half", "c10::Half"), torch.bfloat16: ("BFloat16", "c10::BFloat16"),
    torch.float32: ("Float", "float"), torch.float64: ("Double", "double"),
}  # fmt: skip


def is_device(value: Any) -> bool:
    """Whether an argument of ``to`` says where."""
    if isinstance(value, str | torch.device):
        return True
    return isinstance(value, int) and not isinstance(value, bool)


def on_gpu(device: Any) -> bool:
    """Whether a device that was asked for is a GPU."""
    if isinstance(device, int):
        return True
    return str(device).partition(":")[0] in {"cuda", "meta"}


def named(device: Any, current: int) -> str:
    """A device by its full name; None, or without a number, a GPU is the worker's."""
    name = f"cuda:{device}" if isinstance(device, int) else str(device or "cuda")
    return name if ":" in name or not name.startswith("cuda") else f"cuda:{current}"


def place(tensor: _T, device: Any, current: int) -> None:
    """It was moved to, or made on, a device that was asked for; ``current``: the worker's GPU."""
    if type(tensor) in PLAIN:
        name = named(device, current)
        setattr(tensor, _PLACE, name if name.startswith("cuda") else "")


def is_placed_on_cpu(tensor: _T) -> bool:
    """Whether it is known to be on the CPU."""
    found = getattr(tensor, _PLACE, None)
    return found == "cpu" or (found is None and (not tensor.is_meta or hasattr(tensor, MARK)))


def gpu_of(tensor: _T) -> str:
    """Its name, if it is known to be on one."""
    found: str = getattr(tensor, _PLACE, "")
    return "" if found == "cpu" else found


def leaves_gpu(tensor: _T) -> _T:
    """A copy that is on the CPU."""
    if hasattr(tensor, _PLACE):
        delattr(tensor, _PLACE)
    setattr(tensor, MARK, True)
    return tensor


def hand_on(args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
    """A function has made ``out`` of tensors that are on one GPU."""
    if "device" in kwargs:
        return
    given = list(near((*args, *kwargs.values())))
    there = next((p for t in given if (p := gpu_of(t))), "")
    if not there or any(t.dim() and is_placed_on_cpu(t) for t in given):
        return
    for tensor in near(out if isinstance(out, tuple | list) else (out,)):
        if tensor.is_meta and type(tensor) in PLAIN and not any(tensor is t for t in given):
            setattr(tensor, _PLACE, there)


def hand_on_view(tensor: _T, out: _T) -> None:
    """An attribute (``T``, ``data``) lies where its tensor does."""
    hand_on((tensor,), {}, out)
    if hasattr(tensor, MARK) and out.is_meta:
        setattr(out, MARK, True)


def said(func: Any, tensor: _T, out: Any, current: int) -> Any:
    """What a script reads of where a tensor is; libraries are told of shapes, which they take."""
    if not tensor.is_meta or type(tensor) not in PLAIN or not _is_scripts(sys._getframe(3)):  # noqa: SLF001
        return out
    here = is_placed_on_cpu(tensor) or (hasattr(tensor, _MADE) and not hasattr(tensor, _PLACE))
    if func in ASKED[1:]:
        return func == ASKED[1] and not here  # a script's own is on no meta device
    return torch.device("cpu" if here else gpu_of(tensor) or f"cuda:{current}")


def _is_scripts(frame: FrameType | None) -> bool:
    """Whether its code is no library's, but for a property that hands an answer on."""
    while frame is not None and frame.f_code.co_name in _HAND_ON:
        frame = frame.f_back
    file = "" if frame is None else frame.f_code.co_filename
    library = "-packages" in file and not any(f"/{name}/" in file for name in _SCRIPTS_OWN)
    return not (library or file.startswith(_OURS))


def takes_data(tensor: _T, data: _T) -> None:
    """``tensor.data = data``: it is where the data are."""
    for mark in (MARK, _PLACE):
        found = getattr(data, mark, None)
        if found is not None:
            setattr(tensor, mark, found)
        elif hasattr(tensor, mark):
            delattr(tensor, mark)
    if data.is_meta and not hasattr(data, MARK) and not hasattr(data, _PLACE):
        setattr(tensor, _PLACE, "")


def parameter(real: Callable[..., Any], _steps: Steps, *args: Any, **kwargs: Any) -> Any:
    """``nn.Parameter(data)``: where the data are.

    Accelerate's ``init_empty_weights`` gives it all that another has in its ``__dict__``.
    """
    made: _T = real(*args, **{k: v for k, v in kwargs.items() if not k.startswith("raysim_")})
    data: Any = next(iter(args[1:]), kwargs.get("data"))
    if type(data) in PLAIN and type(made) in PLAIN:
        where = getattr(data, _PLACE, None)
        if where is not None:
            setattr(made, _PLACE, where)
        elif is_placed_on_cpu(data) or hasattr(data, _MADE):
            setattr(made, _MADE, True)
    return made


def entered(steps: Steps, module: torch.nn.Module) -> None:
    """A model is called: what its engine has moved, and whether types count."""
    seen = steps.worker.globals.setdefault(entered, {})
    if id(module) in seen:
        return
    wrapping = wrapping_in(module, steps.within)
    seen[id(module)] = module
    steps.mode.types_count = not wrapping.casts
    moved = f"cuda:{steps.worker.devices[0]}" if wrapping.engine != "ddp" else ""
    weights = list(module.parameters())
    used(steps).update(dict.fromkeys({gpu_of(p) for p in weights} - {""}))
    if not moved and all(getattr(p, _PLACE, "") for p in weights):
        return  # by the script: what it has not moved is on the CPU
    if not moved and all(hasattr(p, _MADE) and not hasattr(p, _PLACE) for p in weights):
        for p in weights:
            setattr(p, _PLACE, "cpu")
        return
    for tensor in (*weights, *module.buffers()):
        if moved or not getattr(tensor, _PLACE, ""):
            setattr(tensor, _PLACE, moved)


def given(steps: Steps, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """A model's inputs, which a wrapper that knows its GPU moves there."""
    kind = FSDPModule, FullyShardedDataParallel
    if steps.mode.tracing or not (getattr(module, "device_ids", None) or isinstance(module, kind)):
        return args, kwargs
    gpu = steps.worker.devices[0]

    def moved(tensor: _T) -> _T:
        return tensor.cuda(gpu) if is_placed_on_cpu(tensor) else tensor

    found: tuple[Any, Any] = tree_map_only(_T, moved, (args, kwargs))
    return found


def check(func: Any, args: Any, kwargs: Mapping[str, Any], *, types_count: bool) -> None:
    """What a GPU's function asks first.

    Raises
    ------
    RuntimeError
        Of tensors on two devices, of shapes that do not fit or, where ``types_count``, of two
        types, in torch's words.
    """
    looks = _CHECKS.get(func)
    if looks is None or not all(type(t) in PLAIN for t in near((*args, *kwargs.values()))):
        return
    looks(args, kwargs)
    if func in _PRODUCTS:
        _check_product(func, args, kwargs)
    if types_count and func in _PRODUCTS and not torch.is_autocast_enabled("cuda"):
        _check_types(func, args, kwargs)


# ---- devices -------------------------------------------------------------------------------------

_Names = tuple[tuple[int, str, str], ...]
"""Position, Python's name and torch's of each tensor, in the order of torch's own signature."""


def _of(args: Any, kwargs: Mapping[str, Any], names: _Names) -> Iterator[tuple[str, Any]]:
    for position, name, said in names:
        found = args[position] if position < len(args) else kwargs.get(name)
        for tensor in found if isinstance(found, tuple | list) else (found,):
            if isinstance(tensor, _T):
                yield said, tensor


def _device(tensor: _T) -> str:
    return "cpu" if is_placed_on_cpu(tensor) else gpu_of(tensor)


def _apart(devices: Iterable[str]) -> bool:
    """Whether they are known to be several."""
    found, steps = {*devices} - {""}, steps_here()
    return len(found) > 1 and ("cpu" in found or steps is None or _is_sure(steps))


def _is_sure(steps: Steps) -> bool:
    """A rank that has not said which GPU is its own may mean GPU 0 by ``cuda``, as CUDA does."""
    return not steps.worker.devices[0] or choose in steps.worker.globals


def used(steps: Steps) -> dict[str, None]:
    """GPUs on which models have parameters."""
    found: dict[str, None] = steps.worker.globals.setdefault(used, {})
    return found


def is_elsewhere(steps: Steps, device: Any) -> bool:
    """Whether a GPU is named on which the process has nothing."""
    if not is_device(device) or not _is_sure(steps):
        return False
    index = device if isinstance(device, int) else torch.device(device).index
    return index not in (None, steps.worker.devices[0]) and f"cuda:{index}" not in used(steps)


def choose(steps: Steps, *_device: Any) -> None:
    """``torch.cuda.set_device``: it is the rank's own."""
    steps.worker.globals.setdefault(choose, {})


def _guard(method: str, names: _Names, args: Any, kwargs: Mapping[str, Any]) -> None:
    """All on the first one's; of numbers, too."""
    found = [(said, _device(t)) for said, t in _of(args, kwargs, names)]
    devices = [device for _, device in found]
    if not _apart(devices):
        return
    common = next(device for device in devices if device)
    said, other = next((s, d) for s, d in found if d not in ("", common))
    raise RuntimeError(
        f"{_SAME}got {said} is on {other}, different from other tensors on {common} "
        f"(when checking argument in method wrapper_CUDA_{method})"
    )


def _elementwise(args: Any, kwargs: Mapping[str, Any]) -> None:
    """Numbers of the CPU are allowed beside tensors of a GPU."""
    given = list(near((*args, *kwargs.values())))
    gpu = next((p for t in given if (p := gpu_of(t))), "")
    for tensor in given if gpu else ():
        other = _device(tensor) if tensor.dim() or gpu_of(tensor) else ""
        if _apart([gpu, other]):
            raise RuntimeError(f"{_SAME}found at least two devices, {gpu} and {other}!")
    if len(given) == 2:
        _check_broadcast(*given)


def _linear(args: Any, kwargs: Mapping[str, Any]) -> None:
    bias = args[2] if len(args) > 2 else kwargs.get("bias")
    if bias is None:
        _guard("mm", ((0, "input", "self"), (1, "weight", "mat2")), args, kwargs)
    else:
        names = ((2, "bias", "self"), (0, "input", "mat1"), (1, "weight", "mat2"))
        _guard("addmm", names, args, kwargs)


def _product(args: Any, kwargs: Mapping[str, Any]) -> None:
    flat = all(t.dim() == 2 for t in near(args))
    names = ((0, "input", "self"), (1, "other", "mat2"))
    _guard("mm" if flat else "bmm", names, args, kwargs)


def _convolution(args: Any, kwargs: Mapping[str, Any]) -> None:
    given = dict(_of(args, kwargs, ((0, "input", "input"), (1, "weight", "weight"))))
    on = {said: _device(tensor) for said, tensor in given.items()}
    if on.get("input") == "cpu" and on.get("weight", "").startswith("cuda"):
        raise RuntimeError(
            f"Input type ({_type(given['input'], 'cpu')}) and weight type "
            f"({_type(given['weight'], 'cuda')}) should be the same or input should be a MKLDNN "
            "tensor and weight is a dense tensor"
        )
    if on.get("weight") == "cpu" and on.get("input", "").startswith("cuda"):
        raise RuntimeError(
            f"Input type ({_type(given['input'], 'cuda')}) and weight type "
            f"({_type(given['weight'], 'cpu')}) should be the same"
        )
    groups = args[6] if len(args) > 6 else kwargs.get("groups", 1)
    shape, weight = list(given["input"].shape), list(given["weight"].shape)
    if len(shape) == len(weight) and shape[1] != weight[1] * groups:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {weight}, expected input{shape} to have "
            f"{weight[1] * groups} channels, but got {shape[1]} channels instead"
        )


def _type(tensor: _T, device: str) -> str:
    within = "torch." if device == "cpu" else "torch.cuda."
    return f"{within}{_NAMES.get(tensor.dtype, (str(tensor.dtype).title(),))[0]}Tensor"


def _recurrent(args: Any, kwargs: Mapping[str, Any]) -> None:
    weights = next((a for a in reversed(args) if isinstance(a, list)), [])
    gpu = next((p for t in weights if (p := gpu_of(t))), "")
    del kwargs
    if gpu and is_placed_on_cpu(args[0]):
        raise RuntimeError(
            "Input and parameter tensors are not at the same device, found input tensor at cpu "
            f"and parameter tensor at {gpu}"
        )


def _index(args: Any, kwargs: Mapping[str, Any]) -> None:
    """Whose indices may be on the CPU, but not on a GPU beside a tensor of the CPU."""
    del kwargs
    indices = args[1] if isinstance(args[1], tuple | list) else (args[1],)
    if is_placed_on_cpu(args[0]) and any(t.dim() and gpu_of(t) for t in near(indices)):
        raise RuntimeError(
            "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
        )


def _mask(args: Any, kwargs: Mapping[str, Any]) -> None:
    on = dict(_of(args, kwargs, ((0, "input", "self"), (1, "mask", "mask"))))
    mask, tensor = (_device(on[name]) if name in on else "" for name in ("mask", "self"))
    if mask and tensor and (mask == "cpu") != (tensor == "cpu"):
        raise RuntimeError(
            "expected self and mask to be on the same device, but got mask on "
            f"{mask} and self on {tensor}"
        )


def _cross_entropy(args: Any, kwargs: Mapping[str, Any]) -> None:
    given = list(_of(args, kwargs, ((0, "input", "self"), (1, "target", "target"))))
    if len(given) > 1 and given[1][1].is_floating_point():  # probabilities
        _elementwise(args, kwargs)
        return
    method = "nll_loss_forward" if given[0][1].dim() <= 2 else "_nll_loss2d_forward"
    names = ((0, "input", "self"), (1, "target", "target"), (2, "weight", "weight"))
    _guard(method, names, args, kwargs)


def _batch_norm(args: Any, kwargs: Mapping[str, Any]) -> None:
    """By whose input ``_batch_norm_impl_index`` takes cuDNN's or torch's own."""
    names = tuple((at, name, name) for at, name in enumerate(
        ("input", "running_mean", "running_var", "weight", "bias")
    ))  # fmt: skip
    given = next((t for _, t in _of(args, kwargs, names[:1])), None)
    on_cpu = given is None or is_placed_on_cpu(given)
    method = "_native_batch_norm" if on_cpu else "_cudnn_batch_norm"
    _guard(method, (names[0], *names[3:], *names[1:3]), args, kwargs)


def _attention(args: Any, kwargs: Mapping[str, Any]) -> None:
    """``validate_sdpa_input``."""
    names = tuple((at, name, name) for at, name in enumerate(("query", "key", "value")))
    on = {name: _device(tensor) for name, tensor in _of(args, kwargs, names)}
    if _apart(on.values()) and all(on.values()):
        said = [f"{name}.device: {on[name]}" for name in ("query", "key", "value")]
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got "
            f"{said[0]} {said[1]} and {said[2]} instead."
        )


_LOOKS = Callable[[Any, Mapping[str, Any]], None]
_ELEMENTWISE = (
    "add", "sub", "mul", "div", "true_divide", "maximum", "minimum", "eq", "ne", "lt", "le", "gt",
    "ge", "addcmul", "addcdiv", "lerp", "where",
)  # fmt: skip
_OPERATORS = ("add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "truediv")
_LOSSES = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits",
    "kl_div",
)  # fmt: skip
_PICKED = ((0, "input", "self"), (2, "index", "index"))
_PAIR = ((0, "input", "self"), (1, "target", "target"), (2, "weight", "weight"))
_PRODUCTS = frozenset([functional.linear, torch.matmul, _T.matmul, _T.__matmul__, torch.mm, _T.mm])


def _all_checks() -> dict[Any, _LOOKS]:
    norm = ((0, "input", "input"), (2, "weight", "weight"), (3, "bias", "bias"))
    rows = ((1, "weight", "self"), (0, "input", "index"))
    found: dict[Any, _LOOKS] = {
        functional.linear: _linear, _T.__getitem__: _index, functional.batch_norm: _batch_norm,
        functional.scaled_dot_product_attention: _attention,
        functional.embedding: partial(_guard, "_index_select", rows),
        functional.layer_norm: partial(_guard, "_native_layer_norm", norm),
        functional.cross_entropy: _cross_entropy, functional.nll_loss: _cross_entropy,
        functional.binary_cross_entropy: partial(_guard, "_binary_cross_entropy", _PAIR),
        torch.cat: partial(_guard, "cat", ((0, "tensors", "tensors"),)),
    }  # fmt: skip
    found |= dict.fromkeys((torch.gather, _T.gather), partial(_guard, "gather", _PICKED))
    found |= dict.fromkeys((*_PRODUCTS - {functional.linear}, torch.bmm, _T.bmm), _product)
    found |= dict.fromkeys((torch.masked_fill, _T.masked_fill, _T.masked_fill_), _mask)
    found |= dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), _convolution)
    found |= dict.fromkeys((getattr(torch, n) for n in ("lstm", "gru", "rnn_tanh")), _recurrent)
    found |= dict.fromkeys((getattr(functional, n) for n in _LOSSES), _elementwise)
    for name in _ELEMENTWISE:
        here = (getattr(o, n, None) for o in (torch, _T) for n in (name, f"{name}_"))
        found |= dict.fromkeys((f for f in here if f is not None), _elementwise)
    return found | dict.fromkeys((getattr(_T, f"__{n}__") for n in _OPERATORS), _elementwise)


_CHECKS = _all_checks()


# ---- shapes --------------------------------------------------------------------------------------


def _check_product(func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    other = "weight" if func is functional.linear else "other"
    shapes = [t.shape for _, t in _of(args, kwargs, ((0, "input", ""), (1, other, "")))]
    if [len(shape) for shape in shapes[1:]] != [2] or len(shapes[0]) < 2:
        return
    left, right = shapes[0], shapes[1][::-1] if func is functional.linear else shapes[1]
    if left[-1] != right[0]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({left[:-1].numel()}x{left[-1]} and "
            f"{right[0]}x{right[1]})"
        )


def _check_broadcast(one: _T, other: _T) -> None:
    """``infer_size`` of ATen's ``ExpandUtils.cpp``: from the last dimension on."""
    most = max(one.dim(), other.dim())
    for back, (a, b) in enumerate(zip(one.shape[::-1], other.shape[::-1], strict=False), 1):
        if a != b and 1 not in (a, b):
            raise RuntimeError(
                f"The size of tensor a ({a}) must match the size of tensor b ({b}) at "
                f"non-singleton dimension {most - back}"
            )


# ---- types ---------------------------------------------------------------------------------------


def _check_types(func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    other = "weight" if func is functional.linear else "other"
    pair = ((0, "input", ""), (1, other, ""))
    types = [t.dtype for _, t in _of(args, kwargs, pair) if t.dtype in _REAL]
    if len(types) < len(pair) or types[0] == types[1]:
        return
    if func is functional.linear and (len(args) > 2 and args[2] is not None):
        names = [_NAMES[t][0] for t in types]
        raise RuntimeError(
            f"mat1 and mat2 must have the same dtype, but got {names[0]} and {names[1]}"
        )
    names = [_NAMES[t][1] for t in types]
    raise RuntimeError(
        f"expected mat1 and mat2 to have the same dtype, but got: {names[0]} != {names[1]}"
    )
