"""The fullest rank is found without emulating the allocator of every one, over random plans."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

from raysim.errors import ScenarioError
from raysim.training.allocator.config import AllocatorConfig
from raysim.training.memory.bounds import at_most
from raysim.training.memory.need import memory_need
from raysim.training.plan import MegatronSettings, TrainingPlan
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from tests.training_parts import cluster, llama, plan, play

WHERE = cluster(2)
MESHES = [
    Mesh(pp=2, dp=2, tp=4), Mesh(pp=3, dp=2), Mesh(pp=4, dp=1, tp=2),
    Mesh(pp=4, dp=2), Mesh(pp=5, tp=2),
]  # fmt: skip
PLAIN = ["1f1b", "megatron_1f1b"]
V_SHAPED = ["zb_v", "v_half"]


@st.composite
def plans(draw: st.DrawFn) -> TrainingPlan:
    """Few layers of any width, cut evenly or not: so that any rank may be the fullest."""
    mesh = draw(st.sampled_from(MESHES))
    layers = draw(st.integers(mesh.pp, 3 * mesh.pp))
    schedule = draw(st.sampled_from([*PLAIN, *PLAIN, "gpipe", "zb_h2", *V_SHAPED]))
    engine = draw(st.sampled_from(["deepspeed", "ddp", "megatron"]))
    method = draw(st.sampled_from(["uniform", "parameters", "type:LlamaDecoderLayer", "blocks"]))
    per_stage: tuple[int, ...] = ()
    if schedule not in V_SHAPED and draw(st.booleans()):
        cuts = draw(st.permutations(range(1, layers)))[: mesh.pp - 1]
        bounds = [0, *sorted(cuts), layers]
        per_stage = tuple(b - a for a, b in pairwise(bounds))
        method = "blocks"
    model = llama(
        layers, draw(st.sampled_from([256, 1024, 8192])),
        draw(st.sampled_from([1024, 32_000, 128_256])), draw(st.sampled_from([64, 512, 4096])),
        tied=draw(st.booleans()),
    )  # fmt: skip
    checkpointing = ["none", "full"] + (["selective"] if engine == "megatron" else [])
    return plan(
        model,
        stage=draw(st.sampled_from([0, 1])),
        mesh=mesh,
        engine=engine,
        micro_batch=draw(st.sampled_from([1, 2, 4])),
        gradient_accumulation_steps=draw(st.sampled_from([1, 2, 4, 8, 33])),
        precision=draw(st.sampled_from(["fp32", "fp16", "bf16"])),
        activation_checkpointing=draw(st.sampled_from(checkpointing)),
        allocator=AllocatorConfig(expandable_segments=draw(st.integers(0, 4)) == 0),
        megatron=MegatronSettings(use_distributed_optimizer=draw(st.booleans())),
        pipeline=PipelineSettings(
            stages=mesh.pp, partition_method=method, schedule=schedule,  # type: ignore[arg-type]
            layers_per_stage=per_stage,
            activation_checkpoint_interval=draw(st.sampled_from([0, 0, 1, 2])),
        ),
    )  # fmt: skip


def cut_logits() -> TrainingPlan:
    """The last of three stages has cached a block of logits that smaller tensors had cut."""
    return plan(
        llama(7, 8192, 128_256, 2048), engine="megatron", mesh=Mesh(pp=3, dp=2),
        micro_batch=1, gradient_accumulation_steps=16, precision="fp32",
        pipeline=PipelineSettings(
            stages=3, schedule="megatron_1f1b", partition_method="blocks",
            layers_per_stage=(2, 3, 2),
        ),
    )  # fmt: skip


@example(cut_logits())
@settings(max_examples=120)
@given(plans())
def test_the_fullest_rank_is_that_of_all(p: TrainingPlan) -> None:
    try:
        each = play(p, WHERE)
    except ScenarioError:  # this schedule does not take so many micro-batches or layers
        assume(False)
    event(f"fullest is rank {[m.rank for m in each.memory].index(each.fullest.rank)}")
    assert memory_need(p, WHERE)[0] == each.fullest.peak_bytes
    for line, memory in zip(each.timelines, each.memory, strict=True):
        plain = p.pipeline.schedule in PLAIN
        assert memory.peak_bytes <= at_most(line.program, each.costs.gpu, plain=plain)
