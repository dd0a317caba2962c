"""``ray.experimental.internal_kv``: the GCS's table of bytes, of which programs may have a share.

Real counterpart: ``python/ray/experimental/internal_kv.py`` of ray 2.60. Functions that the driver
exports lie in a namespace of the table that no program can name.
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.fibers import HUB
from raysim.raycore.protocol import (
    InternalKVDel,
    InternalKVGet,
    InternalKVKeys,
    InternalKVPut,
)

Said = str | bytes


def _text(said: Any) -> str:
    """Bytes as the table has them: one character each."""
    found = said.encode() if isinstance(said, str) else said
    assert isinstance(found, bytes)
    return found.decode("latin-1")


def _space(namespace: Said | None) -> str:
    return "kv:" + ("" if namespace is None else _text(namespace))


def _ask(message: Any) -> Any:
    fiber = this_fiber()
    core = this_core(fiber)
    fiber.settle()
    return fiber.block(lambda then: core.call_gcs(message, then))


def _internal_kv_initialized() -> bool:
    fiber = HUB.current
    return fiber is not None and fiber.process.core is not None


@program_call
def _internal_kv_get(key: Said, *, namespace: Said | None = None) -> bytes | None:
    """What is there, or None."""
    found = _ask(InternalKVGet(_space(namespace), _text(key)))
    return None if found is None else found.value


@program_call
def _internal_kv_exists(key: Said, *, namespace: Said | None = None) -> bool:
    return _ask(InternalKVGet(_space(namespace), _text(key))) is not None


@program_call
def _internal_kv_put(
    key: Said, value: Said, overwrite: bool = True, *, namespace: Said | None = None
) -> bool:
    """Whether there was such a key."""
    space, name, kept = _space(namespace), _text(key), _text(value).encode("latin-1")
    assert isinstance(overwrite, bool)
    return not _ask(InternalKVPut(space, name, kept, len(kept), overwrite))


@program_call
def _internal_kv_del(
    key: Said, *, del_by_prefix: bool = False, namespace: Said | None = None
) -> int:
    """How many there were."""
    space, name = _space(namespace), _text(key)
    names = _ask(InternalKVKeys(space, name)) if del_by_prefix else (name,)
    return sum(_ask(InternalKVDel(space, each)) for each in names)


@program_call
def _internal_kv_list(prefix: Said, *, namespace: Said | None = None) -> list[bytes]:
    """Keys that begin so."""
    found = _ask(InternalKVKeys(_space(namespace), _text(prefix)))
    return [key.encode("latin-1") for key in found]
