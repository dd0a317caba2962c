"""Points that cannot fit, known without playing them: model states alone exceed the GPU.

The ZeRO paper's table (Rajbhandari et al. 2020, ``training.memory.estimators``) as a lower bound of
DeepSpeed's memory: two bytes per weight and gradient, and of Adam's fp32 states twelve, sharded as
the stage says. What is offloaded does not count. Everything else (activations, buckets, CUDA) only
adds. Points whose mesh, precision or engine vary are not screened.

Of LLM fleets: replicas whose GPUs are more than the cluster may have, which would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from raysim.errors import ScenarioError
from raysim.planner.default_space import OFFLOAD
from raysim.planner.space import WORKERS, Choice, Point, Space, chosen, is_nodes
from raysim.planner.trials import Trial
from raysim.scenario.build import build_model
from raysim.scenario.load import AnyScenario, Scenario
from raysim.training.settings.deepspeed import ZeroConfig
from raysim.units import GIB

Screen = Callable[[Point], Trial | None]
HALF = 2
ADAM_STATES = 12
KNOWN = frozenset({
    "train.zero_stage", "train.micro_batch", "train.activation_checkpointing", "train.workers",
    "train.gradient_accumulation_steps", "train.global_batch", "train.seq_len",
    "train.global_batch_tokens", "train.tokens", "train.checkpoint_every", OFFLOAD,
})  # fmt: skip
"""Keys that leave the bound as it is, or that it takes into account."""


def states_bytes(parameters: float, ranks: int, stage: int, *, offloads: str = "none") -> float:
    """Least bytes of model states on a GPU.

    Parameters
    ----------
    parameters
        Trainable ones.
    ranks
        Data-parallel.
    stage
        Of ZeRO, 0 to 3.
    offloads
        ``none``, ``optimizer`` (its states, with the gradients) or ``all``.
    """
    sharded = HALF + ADAM_STATES if offloads == "none" else 0
    if stage == 0:
        return parameters * (HALF + sharded)
    weights = parameters * HALF
    if stage == 3:
        weights = 0.0 if offloads == "all" else weights / ranks
    return weights + parameters * sharded / ranks


def screen_of(scenario: AnyScenario, space: Space) -> Screen | None:
    """What tells that a point cannot fit; None where nothing can be told without playing."""
    if not isinstance(scenario, Scenario):
        library = scenario.job.library
        fleet = library is not None and library.kind == "llm"
        return partial(_more_than_there_are, scenario) if fleet else None
    strategy = scenario.strategy
    config = strategy.deepspeed
    groups = [g for g in scenario.cluster.groups if g.node.gpu is not None]
    told = all(key in KNOWN or is_nodes(key) for key in space.values)
    if not told or config is None or len(groups) != 1 or strategy.precision == "fp32":
        return None
    mesh, group = strategy.mesh, groups[0]
    if (mesh.pp, mesh.tp, mesh.cp, mesh.ep) != (1, 1, 1, 1):
        return None
    if config.optimizer is None or not config.optimizer.type.lower().endswith(("adam", "adamw")):
        return None
    gpu = group.node.gpu
    assert gpu is not None, "a group with GPUs"
    zero, parameters = config.zero, build_model(scenario).num_trainable

    def screened(point: Point) -> Trial | None:
        stage = point.choice.get("train.zero_stage", zero.stage)
        ranks = _ranks(point.choice, mesh.world, group.node.gpu_count)
        if not isinstance(stage, int) or not ranks:
            return None
        offloads = _offloads(point.choice, zero)
        least = states_bytes(parameters, ranks, stage, offloads=offloads)
        if least <= gpu.memory_bytes:
            return None
        return Trial(
            number=point.number, choice=point.choice, status="out_of_memory", gpus=ranks,
            why=f"model states alone take {least / GIB:.1f} GiB of a GPU's "
            f"{gpu.memory_bytes / GIB:.1f}",
            metrics={"memory_peak": least, "gpu_mem_peak": least / gpu.memory_bytes},
        )  # fmt: skip

    return screened


def _more_than_there_are(scenario: AnyScenario, point: Point) -> Trial | None:
    """Of an LLM fleet: it asks for more GPUs than all nodes have, at their most."""
    from raysim.workloads.llm_job import LlmJob

    try:
        changed = chosen(scenario, point.choice)
    except ScenarioError:
        return None  # it is said when it is tried
    assert not isinstance(changed, Scenario), "of a fleet"
    assert isinstance(changed.job.library, LlmJob), "of a fleet"
    app, groups = changed.job.library.app, changed.cluster.groups
    asked = app.engine.gpus * (app.num_replicas + app.prefill_replicas)
    have = sum(max(g.count, g.max_count or 0) * g.node.gpu_count for g in groups)
    if asked <= have:
        return None
    return Trial(
        number=point.number, choice=point.choice, status="refused", gpus=have,
        why=f"the replicas ask for {asked:,} GPUs, the nodes have {have:,}",
    )  # fmt: skip


def _offloads(choice: Choice, zero: ZeroConfig) -> str:
    """What stands elsewhere, as `states_bytes` takes it."""
    if zero.offload_param.device != "none":
        return "all"
    device = choice.get(OFFLOAD, zero.offload_optimizer.device)
    return "none" if device == "none" else "optimizer"


def _ranks(choice: Choice, world: int, gpus_per_node: int) -> int:
    """Data-parallel ranks of a point; 0 where it does not say."""
    workers: Any = choice.get(WORKERS, 0)
    if isinstance(workers, int) and workers:
        return workers
    nodes = [value for key, value in choice.items() if is_nodes(key)]
    if nodes:
        return nodes[0] * gpus_per_node if isinstance(nodes[0], int) else 0
    return world
