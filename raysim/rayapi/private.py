"""``ray._private``: of Ray's inner modules, what programs and installed libraries look at.

Real counterpart: ``python/ray/_private/{services,worker}.py``.
"""

from __future__ import annotations

from types import ModuleType

from raysim.rayapi.fibers import HUB
from raysim.rayapi.unsupported import NotEmulatedError, getattr_of

SCRIPT_MODE, WORKER_MODE = 0, 1
"""Of a driver, and of who runs its tasks."""


class _GlobalWorker:
    """The process that asks."""

    @property
    def mode(self) -> int:
        """What it is."""
        fiber = HUB.here()
        return SCRIPT_MODE if fiber is None or fiber.process.is_driver else WORKER_MODE

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotEmulatedError(
            f"ray._private.worker.global_worker.{name}", "ray.get_runtime_context()"
        )


def modules(util: ModuleType) -> dict[str, ModuleType]:
    """By name; ``util`` has the address of a node."""
    package, worker = ModuleType("ray._private"), ModuleType("ray._private.worker")
    vars(worker).update(
        SCRIPT_MODE=SCRIPT_MODE, WORKER_MODE=WORKER_MODE, global_worker=_GlobalWorker(),
        __getattr__=getattr_of("ray._private.worker"),
    )  # fmt: skip
    vars(package).update(
        services=util, worker=worker, __path__=[], __getattr__=getattr_of("ray._private")
    )
    return {
        "ray._private": package, "ray._private.services": util, "ray._private.worker": worker,
    }  # fmt: skip
