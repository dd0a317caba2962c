"""``ray.dag.DAGContext``: settings of compiled graphs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from raysim.rayapi.calls import this_fiber


def _of_env(name: str, default: float) -> float:
    return float(os.environ.get(f"RAY_CGRAPH_{name}", default))


@dataclass
class DAGContext:
    """With Ray's defaults, or as ``RAY_CGRAPH_<name>`` says."""

    submit_timeout: float = field(default_factory=lambda: int(_of_env("submit_timeout", 10)))
    get_timeout: float = field(default_factory=lambda: int(_of_env("get_timeout", 10)))
    teardown_timeout: float = field(default_factory=lambda: int(_of_env("teardown_timeout", 30)))
    read_iteration_timeout: float = field(
        default_factory=lambda: _of_env("read_iteration_timeout_s", 0.1)
    )
    """Ray looks at each of several channels for so long; here it waits for all of them at once."""
    buffer_size_bytes: int = field(default_factory=lambda: int(_of_env("buffer_size_bytes", 1e6)))
    max_inflight_executions: int = field(
        default_factory=lambda: int(_of_env("max_inflight_executions", 10))
    )
    max_buffered_results: int = field(
        default_factory=lambda: int(_of_env("max_buffered_results", 1000))
    )
    overlap_gpu_communication: bool = False

    def __post_init__(self) -> None:
        if self.read_iteration_timeout > self.get_timeout:
            raise ValueError(
                f"RAY_CGRAPH_read_iteration_timeout_s ({self.read_iteration_timeout}) must be less "
                f"than or equal to RAY_CGRAPH_get_timeout ({self.get_timeout})"
            )

    @staticmethod
    def get_current() -> DAGContext:
        """The one of this process."""
        functions = this_fiber().process.functions
        found: DAGContext | None = functions.get(DAGContext)
        if found is None:
            found = functions[DAGContext] = DAGContext()
        return found
