"""Values on their way: pickled by cloudpickle, arrays out of band, references found inside.

Real counterpart: ``python/ray/_private/serialization.py`` and ``serialization.pxi``. Sizes are
Ray's, to a few bytes: its header around messagepack for plain values, around pickle protocol 5 for
the rest (measured with ray 2.60 on None, numbers, text, tuples and arrays of several sizes: within
2 % for all of them above 1 KB). Lists of small numbers are up to twice Ray's size here, which packs
them tighter than pickle does.

What is read is a copy, as in Ray; arrays are read-only views of one buffer that all readers on all
nodes share here. Values that cannot be changed (numbers, text, bytes) are not pickled at all.
"""

from __future__ import annotations

import io
import pickle
from collections import ChainMap
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, ClassVar, NamedTuple

import cloudpickle

from raysim.raycore.tasks import Payload, Ref, TaskError


class Pickled(NamedTuple):
    """A value in bytes."""

    data: bytes
    buffers: tuple[Any, ...] = ()
    held: tuple[Any, ...] = ()
    """References and handles inside what a task returns: they must outlive the task until its
    caller knows of them."""
    made_bytes: int = 0
    """Of the buffers, those that may be written to: not views of other objects."""
    unseen_bytes: int = 0
    """Of tensors that have shapes only: pickled among the rest, where they had values."""


class Raised(NamedTuple):
    """An error that takes a value's place in an object that was put."""

    error: TaskError


class Plain(NamedTuple):
    """A value that nobody can change, as it is."""

    value: Any


class _Inside:
    """References met while a value is pickled; None while nothing is."""

    __slots__ = ("held", "hold_refs", "refs", "unseen_bytes")

    def __init__(self, *, hold_refs: bool) -> None:
        self.refs: dict[int, Ref] = {}
        self.unseen_bytes = 0
        self.held: list[Any] = []
        self.hold_refs = hold_refs

    def meet(self, thing: Any, ref: Ref) -> None:
        """A reference is inside."""
        self.refs[ref.object_id] = ref
        if self.hold_refs:
            self.held.append(thing)


inside: list[_Inside] = []
"""The value being pickled last; a stack, since a program's own ``__reduce__`` may put."""

_custom: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {}


def register(
    kind: type, *, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]
) -> None:
    """``ray.util.register_serializer``."""
    _custom[kind] = (serializer, deserializer)


def deregister(kind: type) -> None:
    """``ray.util.deregister_serializer``."""
    _custom.pop(kind, None)


def _restore(deserializer: Callable[[Any], Any], state: Any) -> Any:
    return deserializer(state)


_UNNAMED = "<dynamic-code>"
"""What cloudpickle says in place of a function's file, and Ray's copy of it does not."""
_files: dict[tuple[str, int, bytes], str] = {}
"""Files of the code that was pickled; tracebacks of tasks say them."""


def _code(code: CodeType) -> Any:
    _files[code.co_qualname, code.co_firstlineno, code.co_code] = code.co_filename
    return cloudpickle.Pickler.dispatch_table[CodeType](code)


class _CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar = ChainMap({CodeType: _code}, cloudpickle.Pickler.dispatch_table)


def _made(*args: Any) -> CodeType:
    """Code as it was pickled, with its file again."""
    code = CodeType(*args)
    file = _files.get((code.co_qualname, code.co_firstlineno, code.co_code))
    return code if file is None else code.replace(co_filename=file)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name != "_builtin_type":
            return found
        return lambda kind: _made if kind == "CodeType" else found(kind)


def _loads(data: bytes, buffers: Iterable[Any] = ()) -> Any:
    if _UNNAMED.encode() not in data:
        return pickle.loads(data, buffers=buffers)  # noqa: S301  (our own bytes)
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


class _Pickler(_CodePickler):
    def reducer_override(self, obj: Any) -> Any:
        if _custom:
            both = _custom.get(type(obj))
            if both is not None:
                return _restore, (both[1], both[0](obj))
        return super().reducer_override(obj)


_HEADER_BYTES = 14
"""Of messagepack, and ``XLANG`` in the metadata."""
_RAW_BYTES = 3
"""``RAW`` in the metadata."""
_PICKLE_BYTES = 39
"""Around a value that only Python reads: header, extension, offsets; ``PYTHON`` in the metadata."""
_FIRST_BUFFER_BYTES, _BUFFER_BYTES = 82, 20
"""Per array out of band: its entry with shape and strides; the first brings the table."""


def _number_bytes(value: int) -> int:
    if -32 <= value < 128:
        return 1
    for limit, size in ((1 << 8, 2), (1 << 16, 3), (1 << 32, 5)):
        if -limit // 2 <= value < limit:
            return size
    return 9


def serialize(value: Any, *, hold_refs: bool = False) -> Payload:
    """A value, ready to travel; ``hold_refs`` if the references inside may go before it arrives."""
    kind = type(value)
    if value is None or kind is bool:
        return Payload(_HEADER_BYTES + 1, Plain(value))
    if kind is int:
        if -(1 << 63) <= value < 1 << 64:
            return Payload(_HEADER_BYTES + _number_bytes(value), Plain(value))
        return Payload(_PICKLE_BYTES + 16 + value.bit_length() // 8, Plain(value))
    if kind is float:
        return Payload(_HEADER_BYTES + 9, Plain(value))
    if kind is str:
        size = len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
        prefix = 1 if size < 32 else 2 if size < 256 else 3 if size < 65_536 else 5
        return Payload(_HEADER_BYTES + prefix + size, Plain(value))
    if kind is bytes or kind is bytearray:  # messagepack has one kind of bytes
        return Payload(len(value) + _RAW_BYTES, Plain(bytes(value)))
    if kind is Raised:
        return Payload(value.error.size_bytes, value)
    return _pickle(value, hold_refs)


def _pickle(value: Any, hold_refs: bool) -> Payload:
    buffers: list[Any] = []
    file = io.BytesIO()
    found = _Inside(hold_refs=hold_refs)
    inside.append(found)
    try:
        _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    finally:
        inside.pop()
    data = file.getvalue()
    size = len(data) + _PICKLE_BYTES + found.unseen_bytes
    frozen, made_bytes = [], 0
    for buffer in buffers:
        raw = buffer.raw()
        frozen.append(bytes(raw))
        made_bytes += 0 if raw.readonly else raw.nbytes
        entry = _BUFFER_BYTES if len(frozen) > 1 else _FIRST_BUFFER_BYTES
        size += raw.nbytes + entry + 3 * max(1, -(-raw.nbytes.bit_length() // 7))
    pickled = Pickled(
        data, tuple(frozen), tuple(found.held), made_bytes, unseen_bytes=found.unseen_bytes
    )
    return Payload(size, pickled, tuple(found.refs.values()))


def deserialize(payload: Payload) -> Any:
    """A copy of the value; references inside are registered with the running process."""
    data = payload.data
    if data.__class__ is Plain:
        return data.value
    if data is None:  # made by something that is not a program
        return None
    return _loads(data.data, data.buffers)


def pickled_bytes(payload: Payload) -> int:
    """How much of it went through pickle: what serialisation takes time for."""
    data = payload.data
    return len(data.data) + data.unseen_bytes if data.__class__ is Pickled else 0


def array_bytes(payload: Payload) -> int:
    """What its maker's arrays take."""
    data = payload.data
    return data.made_bytes if data.__class__ is Pickled else 0


def dump_code(thing: Any) -> bytes:
    """A function or class, to be sent to workers."""
    file = io.BytesIO()
    _CodePickler(file, protocol=cloudpickle.DEFAULT_PROTOCOL).dump(thing)
    return file.getvalue()


def load_code(data: bytes) -> Any:
    """It, as a worker process has it."""
    return _loads(data)


def is_serializable(value: Any) -> Exception | None:
    """Why it cannot be pickled."""
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # noqa: BLE001  (a ``__reduce__`` may raise anything)
        return error
    return None
