"""How many replicas: the default autoscaling policy; factors, delays and bounds of every one.

Real counterpart: ``serve/autoscaling_policy.py`` and ``get_decision_num_replicas`` of
``_private/autoscaling_state.py`` (ray 2.60), formula by formula; ``tests/real`` compares.

Not modelled: application-level policies, gangs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from raysim.raylibs.serve.config import AutoscalingConfig

_DELAY_ELAPSED_EPS_S = 1e-6


@dataclass(frozen=True, slots=True)
class PolicyState:
    """Since when the same direction has been wanted, and which."""

    direction: int = 0
    """1: more replicas, -1: fewer."""
    since_s: float | None = None


NO_WISH = PolicyState()


def desired_replicas(total_requests: float, running: int, config: AutoscalingConfig) -> int:
    """Replicas wanted before delays and bounds, of a deployment that has some.

    ``ceil(current + factor * (total / target - current))``; a factor that would keep them all
    while fewer are wanted takes one away.
    """
    wanted = running * (total_requests / (config.target_ongoing_requests * running))
    return scaled_replicas(wanted, running, config)


def scaled_replicas(wanted: float, running: int, config: AutoscalingConfig) -> int:
    """``_apply_scaling_factors``: what a policy wants, of a deployment that has some."""
    delta = wanted - running
    factor = config.upscaling_factor if delta > 0 else config.downscaling_factor
    scaled = math.ceil(running + factor * delta)
    if math.ceil(wanted) < running and scaled == running:
        scaled -= 1
    return scaled


def decide(
    total_requests: float,
    running: int,
    target: int,
    config: AutoscalingConfig,
    state: PolicyState,
    now_s: float,
    own: Callable[[], float] | None = None,
) -> tuple[int, PolicyState]:
    """(The new target number of replicas, the state to remember).

    Parameters
    ----------
    total_requests
        Queued and ongoing, aggregated over the look-back.
    running
        Replicas that run; what is wanted is computed from them.
    target
        The present target; what is wanted is compared with it.
    own
        What a policy of one's own wants.
    """
    if running == 0:
        if total_requests > 0:
            return config.bound(max(math.ceil(config.upscaling_factor), target)), state
        wanted = target if own is None else math.ceil(own())
        if wanted > 0:
            return config.bound(wanted), state
    elif own is not None:
        wanted = scaled_replicas(own(), running, config)
    else:
        wanted = desired_replicas(total_requests, running, config)
    replicas, state = _delayed(max(0, wanted), target, config, state, now_s)
    return config.bound(replicas), state


def delay_s(direction: int, target: int, config: AutoscalingConfig) -> float:
    """How long a wish has to last."""
    if direction > 0:
        return config.upscale_delay_s
    if target == 1 and config.downscale_to_zero_delay_s is not None:
        return config.downscale_to_zero_delay_s
    return config.downscale_delay_s


def _delayed(
    wanted: int, target: int, config: AutoscalingConfig, state: PolicyState, now_s: float
) -> tuple[int, PolicyState]:
    """``_apply_delay_logic``: the latest wish, once its direction has lasted for the delay."""
    if wanted == target:
        return target, NO_WISH
    direction = 1 if wanted > target else -1
    same = state.direction == direction and state.since_s is not None
    since_s = state.since_s if same and state.since_s is not None else now_s
    if direction < 0 and target != 1:
        wanted = max(1, wanted)  # only the last one goes to zero
    if now_s - since_s + _DELAY_ELAPSED_EPS_S >= delay_s(direction, target, config):
        return wanted, NO_WISH
    return target, PolicyState(direction, since_s)
