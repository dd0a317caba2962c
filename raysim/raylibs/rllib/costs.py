"""What RLlib's own Python takes around the user's environments and modules.

Of RLlib 2.60 on an EPYC of 2025 with 2 cores, whose ``core_speed`` is 1.67, by which measured
times are multiplied here: iterations of PPO on CartPole without and with a runner, of one and
eight environments, modules of 64 and 256 units, one of IMPALA (``fitted.py`` of
``validation/data/amd-epyc-2core``). What the module itself takes there was taken off. A
scenario's job says what its environment costs with all that is around it, and has none of these.
"""

from __future__ import annotations

from raysim.raylibs.rllib.config import RLlibCosts

PROGRAM = RLlibCosts(
    import_core_s=1.67 * 1.73,
    learner_core_s=1.67 * 0.96,
    request_s=1.67 * 0.3e-3,
    episode_core_s_per_byte=0.0,
    vector_step_core_s=1.67 * 361e-6,
    env_step_core_s=1.67 * 28e-6,
    sample_core_s=1.67 * 6e-3,
    train_step_core_s=1.67 * 5.5e-6,
    gradient_step_core_s=1.67 * 1.1e-3,
    iteration_core_s=1.67 * 4e-3,
    polling_cores=1.5,
)
"""Of programs that run unmodified, on cores of speed 1."""
