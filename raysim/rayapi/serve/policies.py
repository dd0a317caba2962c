"""Autoscaling policies of a program: a function of what the controller knows, with a memory.

Real counterpart: ``AutoscalingPolicy`` and ``AutoscalingContext`` of ``serve/config.py``,
``_private/autoscaling_state.py`` (ray 2.60). Factors, delays and bounds are applied to what it
wants, as in Ray.

Not modelled: metrics of one's own (``record_autoscaling_stats``), which are empty; what the
function takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.clock import EPOCH_S
from raysim.rayapi.fibers import Fiber
from raysim.rayapi.serialization import dump_code, load_code
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.serve.config import AutoscalingConfig, Situation


@dataclass
class AutoscalingPolicy:
    """``ray.serve.config.AutoscalingPolicy``."""

    policy_function: Any
    """Or its import path, ``module:name``; of a class an instance is made."""
    policy_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AutoscalingContext:
    """``ray.serve.config.AutoscalingContext``."""

    deployment_name: str
    app_name: str
    current_num_replicas: int
    target_num_replicas: int
    running_replicas: list[str]
    total_num_requests: float
    total_queued_requests: float
    capacity_adjusted_min_replicas: int
    capacity_adjusted_max_replicas: int
    policy_state: dict[str, Any]
    last_scale_up_time: float | None
    last_scale_down_time: float | None
    current_time: float
    config: AutoscalingConfig
    aggregated_metrics: dict[str, Any] = field(default_factory=dict)
    raw_metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def deployment_id(self) -> str:
        """As Ray prints it."""
        return f"Deployment(name={self.deployment_name!r}, app={self.app_name!r})"

    @property
    def total_running_requests(self) -> float:
        """What is not queued."""
        return max(0.0, self.total_num_requests - self.total_queued_requests)


class ProgramPolicy:
    """``AutoscalingConfig.policy`` of a program's function, in one deployment."""

    def __init__(self, said: Any, config: AutoscalingConfig, deployment: str, app: str) -> None:
        policy = AutoscalingPolicy(**said) if isinstance(said, Mapping) else said
        function = policy.policy_function
        if isinstance(function, str):
            module, _, name = function.partition(":")
            function = getattr(import_module(module), name)
        self._function = load_code(dump_code(function))  # the controller has its own
        if inspect.isclass(self._function):
            self._function = self._function(**policy.policy_kwargs)
        self._config, self._deployment, self._app = config, deployment, app
        self._process = this_fiber().process
        self._state: dict[str, Any] = {}

    def __call__(self, now: Situation) -> float:
        """What it wants."""
        config = self._config
        context = AutoscalingContext(
            deployment_name=self._deployment, app_name=self._app,
            current_num_replicas=len(now.running), target_num_replicas=now.target,
            running_replicas=list(now.running), total_num_requests=now.total_requests,
            total_queued_requests=now.queued_requests,
            capacity_adjusted_min_replicas=config.min_replicas,
            capacity_adjusted_max_replicas=config.max_replicas,
            policy_state=dict(self._state), config=config,
            current_time=EPOCH_S + now.now_s,
            last_scale_up_time=_since_epoch(now.scaled_up_s),
            last_scale_down_time=_since_epoch(now.scaled_down_s),
        )  # fmt: skip
        fiber = self._run(context)
        if fiber.error is not None:  # Ray's controller says so in its log, and goes on
            return now.target
        wanted, state = fiber.result
        self._state = dict(state or {})
        return float(wanted)

    def _run(self, context: AutoscalingContext) -> Fiber:
        """In a fiber, so that it sees virtual time.

        Raises
        ------
        NotEmulatedError
            It waits for something.
        """
        main = partial(self._function, context)
        fiber = Fiber(self._process, None, main, lambda _: None, "autoscaling_policy")
        fiber.start()
        if not fiber.over:
            raise NotEmulatedError("an autoscaling policy that waits", "one that decides at once")
        return fiber


def _since_epoch(at_s: float | None) -> float | None:
    return None if at_s is None else EPOCH_S + at_s
