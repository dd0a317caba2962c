"""Memory of training steps as one H100 was seen to take it, in closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.models.autocast import autocasted
from raysim.models.compiled import compiled
from raysim.models.huggingface import build
from raysim.models.table import COMPUTE_DTYPE_BYTES, FIXED_DTYPE_BYTES, Model
from raysim.training.memory.peaks import RankMemory
from raysim.training.plan import DdpSettings, TrainingPlan
from raysim.training.settings.deepspeed import Optimizer, ZeroConfig
from raysim.training.settings.fp8 import Fp8Settings, quantized_model
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import simulate
from raysim.units import MIB

S, H, F, V = 128, 64, 256, 512
LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": V, "hidden_size": H, "intermediate_size": F,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}  # fmt: skip
BERT: dict[str, Any] = {
    "model_type": "bert", "vocab_size": V, "hidden_size": H, "intermediate_size": F,
    "num_hidden_layers": 2, "num_attention_heads": 4, "architectures": ["BertForMaskedLM"],
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": V, "n_embd": H, "n_layer": 2, "n_head": 4,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip


def kept(model: Model, kind: str = "block") -> float:
    """Bytes per token that the first layer of a kind keeps, computing in 16 bits."""
    layer = next(layer for layer in model.layers if layer.kind == kind)
    widths = FIXED_DTYPE_BYTES | {"compute": COMPUTE_DTYPE_BYTES["bf16"]}
    return sum(s.numel * widths[s.dtype] for s in layer.body.saved().values()) / S


def test_autocast_copies_a_post_norm_stream_for_each_product() -> None:
    """q, k and v have a copy each, both norms keep fp32 inputs; dropout masks are bytes."""
    products = 3 * 2 * H + 3 * 2 * H + 2 * H + 2 * H + 2 * F + 2 * F
    norms = 2 * 4 * H + 4 * 4
    masks, lse = 2 * H, 4 * 4
    assert kept(autocasted(build(BERT, seq_len=S))) == products + norms + masks + lse


def test_autocast_takes_powers_in_fp32() -> None:
    """GPT-2's gelu keeps its input, the tanh and one more than it in fp32, half of it in 16."""
    inner = 4 * H
    gelu = 3 * 4 * inner + 2 * inner
    attention = 2 * H + 2 * 3 * H + 2 * H + 4 * 4
    norms = 2 * 4 * H + 4 * 4
    copies = 2 * H + 2 * inner
    assert kept(autocasted(build(GPT2, seq_len=S))) == gelu + attention + norms + copies


def test_autocast_needs_no_copy_of_what_is_fp32() -> None:
    """Llama's norms keep the fp32 stream itself, and the normed stream in fp32."""
    norms = 2 * (4 + 4) * H + 2 * 4
    attention = 3 * 2 * H + 2 * (H + 2 * H // 2) + 2 * H + 4 * 4
    feedforward = 2 * 2 * H + 4 * 2 * F
    assert kept(autocasted(build(LLAMA, seq_len=S))) == norms + attention + feedforward


def test_autocast_takes_the_likelihood_in_fp32() -> None:
    """``cross_entropy`` names its log-softmax's type; the logits are the output object's."""
    plain, cast = (build(BERT, seq_len=S), autocasted(build(BERT, seq_len=S)))
    head = 4 * 2 * H + 2 * 4 + V * (2 + 2) + 8
    assert kept(plain, "head") == head
    assert kept(cast, "head") == head + V * 4 + 2 * H  # the norm's input in fp32 too


def test_compiled_layers_keep_what_products_need() -> None:
    """As the partitioner was seen to: two norms, queries, repeated keys and values, three of F."""
    norms = 2 * (2 + 2) * H + 2 * 4
    attention = 2 * H + 2 * 2 * H + 2 * H + 4 * 4
    assert kept(compiled(build(LLAMA, seq_len=S))) == norms + attention + 3 * 2 * F


def test_compiled_float8_products_need_no_input_in_16_bits() -> None:
    """As the partitioner was seen to with ``torch._scaled_mm``: norms' outputs go, and the product
    of gate and up; what attention wrote is its own.
    """
    fp8 = Fp8Settings(library="torchao", recipe="tensorwise")
    model = quantized_model(build(LLAMA, seq_len=S), fp8, "hopper", compiled=True)
    norms = 2 * 2 * H + 2 * 4
    attention = 2 * H + 2 * 2 * H + 2 * H + 4 * 4
    assert kept(compiled(model)) == norms + attention + 2 * 2 * F


def test_a_compiled_loss_keeps_16_bit_logits() -> None:
    head = H * 2 + V * 2 + 2 * 4 + 8
    assert kept(compiled(build(LLAMA, seq_len=S)), "head") == head


def peak(plan: TrainingPlan) -> RankMemory:
    """On one H100."""
    node = replace(catalog.node("hgx-h100-8"), gpu_count=1)
    cluster = ClusterSpec(groups=(NodeGroup(name="gpu", node=node, count=1),))
    return simulate(plan, cluster, simulation=Simulation(), memory=True).memory[0]


PLAN = TrainingPlan(
    model=build(LLAMA | {"vocab_size": 32768}, seq_len=1024), mesh=Mesh(), engine="ddp",
    micro_batch=8, gradient_accumulation_steps=1, precision="bf16",
    optimizer=Optimizer(fused=True),
)  # fmt: skip
LOGITS = 8 * 1024 * 32768
"""Of a micro-batch of the plan."""


def test_logits_die_with_the_output_unless_the_loop_keeps_it() -> None:
    """At the peak: fp32 log-softmax and two gradients, and 16 bits if the output is held."""
    died, held = peak(PLAN), peak(replace(PLAN, keeps_output=True))
    assert died.by_category["logits"] == LOGITS * 12 + 8 * 1024 * 8
    assert held.requested_bytes - died.requested_bytes == LOGITS * 2


def test_deepspeeds_pipeline_holds_logits_in_its_buffers() -> None:
    plan = replace(PLAN, engine="deepspeed")
    assert not plan.holds_logits
    assert replace(plan, mesh=Mesh(pp=2)).holds_logits


def test_autograds_thread_has_a_workspace_of_its_own() -> None:
    """32 MiB each on Hopper."""
    assert peak(PLAN).by_category["temporary"] >= 2 * 32 * MIB


def test_adams_loop_holds_three_tensors() -> None:
    """The square root, what it is divided into, and the last one's."""
    wide = replace(PLAN, model=build(LLAMA | {"intermediate_size": 2**18}, seq_len=16))
    wide = replace(wide, micro_batch=1)
    loop = peak(replace(wide, optimizer=Optimizer(fused=False, foreach=False)))
    assert "optimizer" in loop.when
    gate = 2**18 * H * 2
    assert loop.by_category["temporary"] == 64 * MIB + 3 * gate


@pytest.mark.parametrize(("kind", "roots"), [("AdamW", 1), ("FusedAdam", 0)])
def test_zero3_takes_the_square_roots_of_a_flat_slice(kind: str, roots: int) -> None:
    plan = replace(
        PLAN, engine="deepspeed", micro_batch=1,
        zero=ZeroConfig(stage=3, reduce_bucket_size=1_000_000),
        model=build(LLAMA | {"hidden_size": 1024}, seq_len=16),
        optimizer=Optimizer(type=kind, fused=False),
    )  # fmt: skip
    numel = plan.model.num_trainable
    memory = peak(plan)
    assert "optimizer" in memory.when
    assert memory.by_category["temporary"] == 64 * MIB + (1 + roots) * 4 * numel


def test_autocast_casts_weights_of_products_only() -> None:
    """Not the embedding, which no product reads."""
    plain = replace(PLAN, precision="fp32", micro_batch=1, ddp=DdpSettings(autocast="bf16"))
    weights = sum(p.numel for _, p in plain.model.parameters())
    table = 32768 * H
    norms = 5 * H
    assert peak(plain).by_category["parameter"] == weights * 4 + (weights - table - norms) * 2
