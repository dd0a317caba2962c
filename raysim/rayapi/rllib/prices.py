"""What the module takes where a process runs: asked of the training tower.

An env runner's forward pass is that of one core; a learner's gradient step that of its GPU, or of
the cores that torch has there: those of the node in a driver, those it holds in an actor (Ray sets
``OMP_NUM_THREADS``). More cores speed up products, the rest is one thread's.

Not modelled: copies of batches to the GPU, env runners on GPUs, learners on nodes of two kinds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, Any, cast

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.hardware.specs import CpuRankSpec
from raysim.rayapi.rllib.costed import REPLAY, name_of
from raysim.rayapi.rllib.environments import EnvProgram
from raysim.rayapi.rllib.modules import Spaces
from raysim.rayapi.rllib.results import say_once
from raysim.rayapi.rllib.tables import Tables, module_of
from raysim.rayapi.shapes import prediction
from raysim.raycore.process import CoreProcess
from raysim.raylibs.rllib.config import ModelSpec
from raysim.training.compiler.feed import Feed
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.parallel import Mesh
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    from raysim.rayapi.rllib.algorithm_config import AlgorithmConfig

CPU_NODE = "cpu-ranks-2"
"""Of the catalog: a host whose cores are ranks."""
STEP_BYTES = 8 + 8 + 4 + 8
"""Of a step in an episode beside its spaces: reward, flags, log-probability, number of weights."""
FP32_BYTES = 4


@dataclass(kw_only=True)
class Prices:
    """Of one algorithm's module; alike on alike nodes."""

    config: AlgorithmConfig
    program: EnvProgram
    found: dict[Any, ModelSpec] = field(default_factory=dict)
    _tables: dict[str, Tables | None] = field(default_factory=dict)
    """By policy."""

    def __call__(self, process: CoreProcess) -> ModelSpec:
        """Where it runs."""
        node = self.program.session.env.nodes[process.me.node_id].spec
        in_driver = process.me.worker_id == self._driver.me.worker_id
        key = node.name, in_driver, self._by_share
        if key not in self.found:
            self.found[key] = self._price(node, self._threads(node, in_driver=in_driver))
        return self.found[key]

    @property
    def _driver(self) -> Any:
        return self.program.driver.core

    def _threads(self, node: Any, *, in_driver: bool) -> int:
        if in_driver and self.program.driver.is_driver:
            return int(node.vcpus)
        said = self.config.num_cpus_per_learner
        return max(1, 1 if said == "auto" else int(said))

    @property
    def _by_share(self) -> bool:
        """A batch is not cut: of several agents' each module has its own part.

        Known when they have acted.
        """
        roles, config = self.program.roles, self.config
        cut = bool(config.minibatch_size) or name_of(config) in REPLAY
        return roles.several and bool(roles.steps) and not cut

    @property
    def weights_bytes(self) -> dict[str, int]:
        """Of what an env runner has of each policy's module."""
        for policy, spaces in self.program.roles.spaces.items():
            if policy not in self._tables:
                self._tables[policy] = module_of(self.config, spaces, policy, self._say)
        return {p: t[1].num_parameters * FP32_BYTES if t else 0 for p, t in self._tables.items()}

    def _say(self, text: str) -> None:
        say_once(self.program.session, text, text)

    def _price(self, node: Any, threads: int) -> ModelSpec:
        """All modules, one after the other."""
        weights_bytes = sum(self.weights_bytes.values())
        assert self._tables, "priced before an environment was there"
        with_gpu = bool(self.config.num_gpus_per_learner) and node.gpu_count > 0
        batch = self.config.samples_of_a_step
        batches = self.program.roles.module_steps(batch) if self._by_share else {}
        each = {
            p: self._module_s(t, node, threads, with_gpu, batches.get(p, batch))
            for p, t in self._tables.items()
        }
        trained = self.program.roles.trained or tuple(each)
        return ModelSpec(
            weights_bytes=weights_bytes, forward_s=sum(forward_s for forward_s, _ in each.values()),
            step_s=sum(each[policy][1] for policy in trained if policy in each),
            allreduce_bytes_per_s=float("inf"), on_cores=not with_gpu,
            step_bytes=sum(_step_bytes(s) for s in self.program.roles.spaces.values()),
        )  # fmt: skip

    def _module_s(
        self, table: Tables | None, node: Any, threads: int, with_gpu: bool, batch: int
    ) -> tuple[float, float]:
        """(a forward pass of an env runner, a gradient step)."""
        if table is None:
            return 0.0, 0.0
        config, (whole, inference, length) = self.config, table
        learners = max(1, config.num_learners)
        plan = TrainingPlan(
            model=whole, mesh=Mesh(dp=learners), engine="ddp",
            micro_batch=max(1, ceil(batch / length)), gradient_accumulation_steps=1,
            precision="fp32", optimizer=Optimizer(type="Adam", lr=1e-3),
            gradient_clipping=config.grad_clip or 0.0,
        )  # fmt: skip
        feed, seed = Feed(), self.program.session.sim.rng.seed
        where = (
            _gpus(node, learners, self.program.session.cluster.spec.fabric)
            if with_gpu else _cores(node, learners, threads)
        )  # fmt: skip
        step = prediction.predict(plan, where, feed, seed)
        alone = replace(
            plan, model=inference, mesh=Mesh(dp=1), micro_batch=config.num_envs_per_env_runner
        )
        forward_ns = prediction.forward(alone, _cores(node, 1, 1), feed, seed).ns
        return forward_ns / NS_PER_S, step.step_ns / NS_PER_S


def _step_bytes(spaces: Spaces) -> int:
    return spaces.observation_bytes + spaces.action_bytes + FP32_BYTES * spaces.logits + STEP_BYTES


def _cores(node: Any, ranks: int, threads: int) -> ClusterSpec:
    own = node.gpu if isinstance(node.gpu, CpuRankSpec) else None
    rank = own or cast("CpuRankSpec", catalog.node(CPU_NODE).gpu)
    rank = replace(rank, product_flops_per_s=rank.product_flops_per_s * threads)
    host = replace(
        catalog.node(CPU_NODE), vcpus=ranks, gpu=rank, gpu_count=ranks, nic=node.nic,
        nic_count=node.nic_count, memory_bytes=node.memory_bytes,
    )  # fmt: skip
    return ClusterSpec(groups=(NodeGroup(name="learners", node=host, count=1),))


def _gpus(node: Any, learners: int, fabric: Any) -> ClusterSpec:
    """As many nodes as they fill."""
    count = ceil(learners / node.gpu_count)
    spec = replace(node, gpu_count=ceil(learners / count))
    return ClusterSpec(groups=(NodeGroup(name="learners", node=spec, count=count),), fabric=fabric)
