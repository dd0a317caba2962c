"""One optimizer step of a job whose ranks are not alike, with every rank looked at.

Where ``noise`` folded gives the mean over all draws, this is one draw: each GPU, and each launch of
a kernel where those vary, has its own. Thousands of ranks take a second or two.
"""

from __future__ import annotations

from raysim.hardware.cluster import ClusterSpec
from raysim.kernel.rng import Streams
from raysim.kernel.simulation import collector_at_ease
from raysim.training.compiler.feed import Feed
from raysim.training.graph.every_rank import every_rank_step_ns
from raysim.training.noise import Noise
from raysim.training.plan import TrainingPlan
from raysim.training.prepared import compile_programs, prepare
from raysim.training.stages import check_pipeline
from raysim.training.tower import steps_to_steady


@collector_at_ease()
def drawn_step_ns(
    plan: TrainingPlan, cluster: ClusterSpec, noise: Noise, *, seed: int = 0,
    feed: Feed | None = None,
) -> int:  # fmt: skip
    """Nanoseconds of a steady optimizer step, all its micro-batches included.

    Parameters
    ----------
    plan, cluster
        What runs, and where.
    noise
        How ranks differ.
    seed
        Of all draws.
    feed
        What the data of a micro-batch costs; None: nothing.

    Raises
    ------
    ScenarioError
        As ``simulate``.
    """
    check_pipeline(plan)
    costs, stages, comms = prepare(plan, cluster, folded=True, narrow=noise.links)
    steps = steps_to_steady(plan)
    programs = compile_programs(
        plan, comms, stages, costs, feed=feed or Feed(), steps=steps, memory=False
    )
    return every_rank_step_ns(programs, comms, noise, Streams(seed))[-1]
