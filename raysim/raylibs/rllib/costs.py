"""What RLlib's own Python takes around the user's environments and modules.

Of RLlib 2.60 on an EPYC of 2025 with 2 cores, whose ``core_speed`` is 1.51 (its profile in
``validation/data/amd-epyc-2core/2026-11-25``), by which measured times are multiplied here. From
iterations of PPO on CartPole without and with a runner, of one and eight environments, with modules
of 64 and 256 units: rows marked calibration in ``validation/data/rllib/iterations.json``. What the
training tower says of the module was taken off. A scenario's job says what its environment costs
with all that is around it, and has none of these.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.raylibs.rllib.config import RLlibCosts

SPEED = 1.51
"""Of the cores that were measured."""

PROGRAM = RLlibCosts(
    import_core_s=SPEED * 1.73,  # CPU time of ``import ray.rllib.algorithms.ppo`` after ``ray``
    learner_core_s=SPEED * 0.96,
    request_s=SPEED * 0.3e-3,
    episode_core_s_per_byte=0.0,  # in ``train_step_core_s``
    vector_step_core_s=SPEED * 370e-6,
    env_step_core_s=SPEED * 28e-6,
    sample_core_s=SPEED * 6e-3,
    train_step_core_s=SPEED * 5.5e-6,
    gradient_step_core_s=SPEED * 1.87e-3,
    iteration_core_s=SPEED * 4e-3,
    polling_cores=1.5,
)
"""Of programs that run unmodified, on cores of speed 1."""

DQN = replace(
    PROGRAM,
    request_s=SPEED * 3.3e-3,  # all that a call of a runner takes beside Ray's part
    learner_request_s=SPEED * 2.0e-3,
    sample_core_s=SPEED * 0.74e-3,
    train_step_core_s=SPEED * 35e-6,
    gradient_step_core_s=SPEED * 2.29e-3,
    sync_core_s=SPEED * 1.2e-3,
    store_core_s=SPEED * 0.58e-3,
    store_fragment_core_s=SPEED * 0.19e-3,
    replay_core_s=SPEED * 1.1e-3,
    replay_item_core_s=SPEED * 30e-6,
    priority_core_s=SPEED * 5.8e-6,
    ship_item_core_s=SPEED * 49e-6,
)
"""Of programs of DQN on that machine (``off_policy.json``): means of calls, and of RLlib's timers.

On an environment of four random numbers that costs nothing, episodes of 50 steps: the driver alone
with batches of 32 and 256 and with one and eight environments; one runner with fragments of 1 and 8
steps, two of 1; a learner. A request of few steps takes far less than PPO's of thousands.
"""
SAC = replace(
    DQN,
    vector_step_core_s=SPEED * 0.87e-3,  # a squashed normal distribution is made and drawn from
    gradient_step_core_s=SPEED * 11.1e-3,  # four losses, each with its backward pass and optimizer
    sync_core_s=SPEED * 2.28e-3,
)
"""Of SAC with two continuous actions, batches of 32 and 256; target networks follow each step."""


def of_policies(one: RLlibCosts, count: int, trained: int) -> RLlibCosts:
    """Of programs with several agents; an environment's part is each acting agent's.

    Parameters
    ----------
    one
        Of the same algorithm with one agent.
    count, trained
        Policies, and those of them that are updated.

    Of PPO with one agent, two and four with as many policies, and four with one, the driver alone,
    on the same machine (``agents.json``). What another algorithm takes more around a pass of the
    module, each module takes. A replay buffer gives a batch of each module, trained or not.
    """
    more_s = one.vector_step_core_s - PROGRAM.vector_step_core_s
    batches = count if one.replay_core_s else trained
    return replace(
        one,
        vector_step_core_s=SPEED * (0.28e-3 + 0.125e-3 * count) + more_s * count,
        env_step_core_s=SPEED * 0.099e-3,
        train_step_core_s=one.train_step_core_s * batches,
        gradient_step_core_s=one.gradient_step_core_s * trained,
        replay_core_s=one.replay_core_s * count,
        replay_item_core_s=one.replay_item_core_s * count,
        ship_item_core_s=one.ship_item_core_s * count,
        priority_core_s=one.priority_core_s * trained,
        sync_core_s=one.sync_core_s * trained,
    )
