"""What RLlib's own Python takes around the user's environments and modules.

Of RLlib 2.60 on one core of a 2-core Intel Xeon at 2.1 GHz, from iterations of PPO on CartPole
without and with runners, one and eight environments, modules of 64 and 256 units; the rows of
``validation/workloads/ray_libraries/rllib_fitted.py`` and others like them. A scenario's job says
what its environment costs with all that is around it, and has none of these.
"""

from __future__ import annotations

from raysim.raylibs.rllib.config import RLlibCosts

PROGRAM = RLlibCosts(
    import_core_s=2.6,
    request_s=0.3e-3,
    episode_core_s_per_byte=2e-10,
    vector_step_core_s=320e-6,
    env_step_core_s=20e-6,
    train_step_core_s=5.5e-6,
    gradient_step_core_s=0.35e-3,
    iteration_core_s=4e-3,
)
"""Of programs that run unmodified."""
