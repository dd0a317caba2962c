"""Small models, clusters and plans for tests of the training tower; every option has a default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.hardware.topology import Topology
from raysim.kernel.simulation import Simulation
from raysim.models import sequential
from raysim.models.huggingface import build
from raysim.models.table import Model
from raysim.perf.compute import ComputeModel
from raysim.training.communicators import Communicators
from raysim.training.compiler.feed import Feed
from raysim.training.plan import TrainingPlan
from raysim.training.prepared import compile_programs
from raysim.training.program import Program
from raysim.training.settings.deepspeed import Optimizer, PipelineSettings, ZeroConfig
from raysim.training.settings.parallel import Mesh
from raysim.training.stages import build_stages
from raysim.training.tower import StepOutcome, simulate


def llama(
    layers: int = 4, hidden: int = 256, vocab: int = 1024, seq_len: int = 128, *, tied: bool = False
) -> Model:
    """A small Llama with eight heads."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": tied,
    }
    return build(config, seq_len=seq_len)


def cluster(nodes: int = 2, node: str = "hgx-h100-8", gpus: int | None = None) -> ClusterSpec:
    """Equal nodes on a rail-optimised fabric; ``gpus`` per node if not the node's own count."""
    spec = catalog.node(node)
    if gpus is not None:
        spec = replace(spec, gpu_count=gpus, nic_count=min(spec.nic_count, gpus))
    group = NodeGroup(name="gpu", node=spec, count=nodes)
    return ClusterSpec(groups=(group,), fabric=FabricSpec(kind="rail_fat_tree"))


def wide_stack(count: int) -> Model:
    """Equal layers, no loss: their kernels take far longer than launches, sends, gradient sums."""
    model = sequential.build([(8192, 8192)] * 2)
    first = model.layers[0]
    return replace(model, layers=tuple(replace(first, name=str(i)) for i in range(count)))


def fast_wires(nodes: int = 1) -> ClusterSpec:
    """One HGX H100 whose NVLinks cost next to nothing."""
    where = cluster(nodes=nodes)
    (group,) = where.groups
    assert group.node.gpu is not None
    gpu = replace(group.node.gpu, scale_up_bytes_per_s=1e15)
    return replace(where, groups=(replace(group, node=replace(group.node, gpu=gpu)),))


def plan(model: Model | None = None, *, stage: int = 0, **options: Any) -> TrainingPlan:
    """DeepSpeed in bf16 on eight data-parallel ranks unless told otherwise."""
    zero = options.pop("zero", {})
    defaults: dict[str, Any] = {
        "model": model or llama(),
        "mesh": Mesh(dp=8),
        "engine": "deepspeed",
        "micro_batch": 2,
        "gradient_accumulation_steps": 2,
        "precision": "bf16",
        "optimizer": Optimizer(),
        "zero": ZeroConfig(stage=stage, **zero),  # type: ignore[arg-type]
        "pipeline": PipelineSettings(partition_method="uniform"),
    }
    return TrainingPlan(**defaults | options)


def programs(
    p: TrainingPlan, where: ClusterSpec | None = None, steps: int = 1, *,
    forward_only: bool = False, feed: Feed | None = None,
) -> tuple[Program, ...]:  # fmt: skip
    """Compiled programs of the simulated ranks."""
    where = where or cluster()
    assert where.gpu is not None
    costs = ComputeModel(where.gpu)
    stages = build_stages(p, costs)
    tied = [s.index for s in stages if s.tied_bytes]
    comms = Communicators(p.mesh, Topology.build(where), folded=True, tied_stages=tied)
    return compile_programs(
        p, comms, stages, costs, feed=feed or Feed(), steps=steps, forward_only=forward_only
    )


def emitted(p: TrainingPlan, steps: int) -> list[tuple[Any, ...]]:
    """All that a plan's programs say."""
    return [
        (
            [tuple(getattr(op, slot) for slot in op.__slots__) for op in program.ops],
            program.micro_batches, program.memory, program.memory_at,
            program.step_held, program.backward_ends, program.step_ends,
        )
        for program in programs(p, cluster(3), steps=steps)
    ]  # fmt: skip


def play(p: TrainingPlan, where: ClusterSpec | None = None, **options: Any) -> StepOutcome:
    """Simulate a plan on a fresh clock."""
    return simulate(p, where or cluster(), simulation=Simulation(), **options)
