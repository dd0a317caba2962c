"""A decoder-only transformer as inference sees it: weights read and state kept, per layer.

Read from an unmodified Hugging Face ``config.json`` by the layer table of ``models``, which says
what a training step computes at one sequence length; an engine's iterations mix prompts and single
tokens of any length, so what stays here are widths.

Not modelled: encoder-decoders, speculative decoding, heads that predict more
than one token, and formats of weights other than those of ``WEIGHT_BYTES``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from raysim.models.config import Reader, called, reader_of
from raysim.models.huggingface import build
from raysim.models.shapes import Scan
from raysim.models.table import Body, Model, Operator
from raysim.serving.settings import QUANTIZATIONS

BF16_BYTES = 2.0
MXFP4_BYTES = 4.25 / 8
"""Four bits, and a scale of eight bits per 32 weights (OCP Microscaling Formats, MXFP4)."""
INT4_BYTES = 0.5 + 2.5 / 128
"""Four bits, and per group of 128 a scale of 16 and a zero of four bits (AWQ, GPTQ)."""
NVFP4_BYTES = 0.5 + 1.0 / 16
"""Four bits, and per 16 weights a scale of eight."""
WEIGHT_BYTES = {"fp8": 1.0, "awq": INT4_BYTES, "gptq": INT4_BYTES, "mxfp4": MXFP4_BYTES}
"""Per weight of a quantised product, by ``quantization_config.quant_method``."""
MODELOPT_BYTES = {"FP8": 1.0, "NVFP4": NVFP4_BYTES}
"""The same by ``quant_algo`` of ``modelopt``."""
METHODS = (*WEIGHT_BYTES, "modelopt", "compressed-tensors")
FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text", "gemma3",
    "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3", "kimi_k2",
    "qwen3_next", "qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe", "bamba",
    "granitemoehybrid", "nemotron_h", "glm4_moe", "qwen2_vl", "qwen2_5_vl", "qwen3_vl",
    "qwen3_vl_moe", "granite", "seed_oss", "smollm3", "exaone4", "olmo2", "olmo3",
    "olmoe", "minimax_m2", "opt",
)  # fmt: skip
"""Families whose blocks are a mixer, a feed-forward, or one after the other."""
POSITIONED = ("opt",)
"""Of them, those with learned positions, biases, and maybe embeddings of another width."""
LATENT = "kv_a_proj_with_mqa"
"""The product whose output multi-head latent attention keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One kind of layer, and how many the model has."""

    count: int
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    window: int | None = None
    """Sliding window in tokens; None: all keys are read."""
    latent: int = 0
    """Elements that multi-head latent attention keeps per token; 0: keys and values by head."""
    scan: Scan | None = None
    """A recurrence in attention's place; its steps and elements are one token's."""
    scan_flops: float = 0.0
    """Of the recurrence, per token of a prompt."""
    scan_moved: float = 0.0
    """Elements that it passes over, per token of a prompt."""
    input_parameters: int = 0
    """Of the products before attention's core or the recurrence; 0: the block has no mixer."""
    output_parameters: int = 0
    """Of the product after it."""
    dense_columns: int = 0
    """Of the first products of a feed-forward, or of experts that every token passes: twice the
    width where it is gated; 0: none."""
    dense_width: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_columns: int = 0
    expert_width: int = 0
    narrowed: int = 0
    """Width of what routed experts work on, where tokens are projected to it and back; 0: the
    hidden one."""

    @property
    def branches(self) -> int:
        """What is added to the residual, one after the other: the mixer, the feed-forward."""
        return bool(self.output_parameters) + bool(self.dense_width or self.experts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Widths of a model, and bytes per weight."""

    name: str
    hidden: int
    vocabulary: int
    tied: bool
    blocks: tuple[Block, ...]
    beside: int = 0
    """Parameters of towers that text does not pass."""
    weight_bytes: float = BF16_BYTES
    """Of attention's and dense products."""
    expert_bytes: float = BF16_BYTES
    state_bytes: float = BF16_BYTES
    """Per element of a recurrence's state."""
    sinks: bool = False
    """Attention has a learned weight for no key at all."""

    @property
    def layers(self) -> int:
        """Transformer blocks."""
        return sum(b.count for b in self.blocks)

    def expert_parameters(self, block: Block) -> int:
        """Of one routed expert of a block."""
        return (block.narrowed or self.hidden) * (block.expert_columns + block.expert_width)

    def other_parameters(self, block: Block) -> int:
        """Of one block's products that every token passes."""
        router = self.hidden * (block.experts + 2 * block.narrowed)
        dense = self.hidden * (block.dense_columns + block.dense_width)
        return block.input_parameters + block.output_parameters + dense + router

    def layer_state_bytes(self, block: Block) -> float:
        """Of one sequence in one layer: a recurrence's state, and what its convolution has seen."""
        scan = block.scan
        if scan is None:
            return 0.0
        return scan.state_elements * self.state_bytes + scan.conv_elements * BF16_BYTES

    @property
    def parameters(self) -> int:
        """Of all products and embeddings; norms and biases, a millionth, are left out."""
        blocks = sum(
            b.count * (self.other_parameters(b) + b.experts * self.expert_parameters(b))
            for b in self.blocks
        )
        return blocks + self.beside + self.hidden * self.vocabulary * (1 if self.tied else 2)

    @property
    def routed_bytes(self) -> float:
        """Of all routed experts."""
        return self.expert_bytes * sum(
            b.count * b.experts * self.expert_parameters(b) for b in self.blocks
        )

    @property
    def total_bytes(self) -> float:
        """Of all weights as they lie in GPU memory."""
        vocabulary = self.hidden * self.vocabulary * (1 if self.tied else 2)
        others = sum(b.count * self.other_parameters(b) for b in self.blocks)
        dense = others * self.weight_bytes + (vocabulary + self.beside) * BF16_BYTES
        return dense + self.routed_bytes


def read_decoder(
    config: Mapping[str, Any], *, file: str = "config.json", quantization: str | None = None
) -> Decoder:
    """A decoder from the keys of a ``config.json``.

    Parameters
    ----------
    quantization
        vLLM's argument: of a checkpoint in 16 bits ``fp8`` makes fp8 as it is loaded; else it says
        again what the checkpoint says.

    Raises
    ------
    ScenarioError
        The family or the format of weights is unknown, or a key is impossible; every problem.
    """
    if quantization == "fp8" and not config.get("quantization_config"):
        config = {**config, "quantization_config": {"quant_method": "fp8"}}
    r = reader_of(config, file)
    if quantization is not None:
        _says_the_same(r, quantization)
    family = config.get("model_type")
    if family not in FAMILIES:
        r.refuse("model_type", f"{family!r} cannot be served yet; known: {', '.join(FAMILIES)}")
        r.check()
    width = _quantised(r)
    r.check()
    # gpt_oss has a table of Megatron-core's modules only; products are the same
    model = build(config, library="megatron_core" if family == "gpt_oss" else "transformers",
                  file=file)  # fmt: skip
    assert model.vocab_size is not None, "a decoder has a vocabulary"
    blocks = _blocks(model)
    if not any(b.heads for b in blocks):
        r.refuse("model_type", f"{family!r} without a layer of attention cannot be served yet")
        r.check()
    found = Decoder(
        name=called(config),
        hidden=model.hidden_size,
        vocabulary=model.vocab_size,
        tied=any(p.tied_to for _, p in model.parameters()),
        blocks=blocks,
        beside=sum(x.body.numel for x in model.layers if x.kind == "other"),
        # mxfp4 is of experts alone: gpt-oss keeps the rest in bf16
        weight_bytes=BF16_BYTES if width == MXFP4_BYTES else width,
        expert_bytes=width,
        state_bytes=_state_bytes(r),
        sinks=family == "gpt_oss",
    )
    if family in POSITIONED:
        return replace(found, beside=model.num_parameters - found.parameters)
    return found


def _says_the_same(r: Reader, quantization: str) -> None:
    """As ``ModelConfig._verify_quantization`` has it."""
    section = r.section("quantization_config")
    method, asked = section.values.get("quant_method"), QUANTIZATIONS[quantization]
    if method != asked:
        section.refuse(
            "quant_method",
            f"{method!r} does not match engine_kwargs.quantization, {quantization!r}: name a "
            "checkpoint that is so quantised, or leave the argument out",
        )


def _quantised(r: Reader) -> float:
    """Bytes per weight of products, by ``quantization_config``."""
    section = r.section("quantization_config")
    method = section.values.get("quant_method")
    if not section.values or method in WEIGHT_BYTES:
        return WEIGHT_BYTES.get(str(method), BF16_BYTES)
    if method == "modelopt":
        algorithm = section.choice("quant_algo", default="FP8", among=MODELOPT_BYTES)
        return MODELOPT_BYTES[algorithm]
    if method == "compressed-tensors":
        return _compressed(section)
    section.refuse("quant_method", f"{method!r} is not modelled; known: {', '.join(METHODS)}")
    return BF16_BYTES


def _compressed(section: Reader) -> float:
    """``compressed-tensors``: bits, and per group a scale of 16, or of 8 beside 4-bit floats."""
    groups = section.section("config_groups")
    name = next(iter(groups.values), "group_0")
    weights = groups.section(name).section("weights")
    bits = weights.integer("num_bits", default=8, most=16)
    group = weights.optional_integer("group_size")
    scale_bytes = 1.0 if bits == 4 and weights.values.get("type") == "float" else 2.0
    return bits / 8 + (scale_bytes / group if group else 0.0)


def _state_bytes(r: Reader) -> float:
    """vLLM keeps states as the model says, else as it computes."""
    said = {**r.values, **r.section("text_config").values}
    wide = "float32" in (said.get("mamba_ssm_dtype"), said.get("mamba_ssm_cache_dtype"))
    return 2 * BF16_BYTES if wide else BF16_BYTES


def _blocks(model: Model) -> tuple[Block, ...]:
    """Layers of a kind share their body; those that read all keys first."""
    bodies = Counter(x.body for x in model.layers if x.kind == "block")
    blocks = Counter[Block]()
    for body, count in bodies.items():
        blocks[_block(body, model.seq_len)] += count
    made = [replace(block, count=count) for block, count in blocks.items()]
    return tuple(sorted(made, key=lambda b: b.window is not None))


def _block(body: Body, tokens: int) -> Block:
    """A layer's widths, from its operators in the order in which they run."""
    operators = tuple(body.operators)
    at = next((i for i, o in enumerate(operators) if o.kind in ("attention", "scan")), 0)
    before = [o for o in operators[:at] if o.gemm]
    after = [o for o in operators[at:] if o.gemm]
    mixer: dict[str, Any] = {}
    if before:
        mixer = _core(operators[at], before, tokens) | {
            "input_parameters": sum(_parameters(o) for o in before),
            "output_parameters": _parameters(after.pop(0)),
        }
    return Block(
        count=1, **mixer, **_experts(after, tokens),
        dense_columns=sum(o.gemm.n for o in after if o.gemm and o.split == "column"),
        dense_width=sum(o.gemm.k for o in after if o.gemm and o.split == "row"),
    )  # fmt: skip


def _experts(products: list[Operator], tokens: int) -> dict[str, Any]:
    """Routed experts among a feed-forward's products."""
    own = [o.gemm for o in products if o.gemm and o.split == "expert"]
    if not own:
        return {}
    first, second = own
    hidden = next(o.gemm.k for o in products if o.gemm)  # the router's, or another's before it
    return {
        "experts": first.groups, "experts_per_token": round(first.rows / tokens),
        "expert_columns": first.n, "expert_width": second.k,
        "narrowed": first.k if first.k != hidden else 0,
    }  # fmt: skip


def _parameters(o: Operator) -> int:
    return o.gemm.n * o.gemm.k if o.gemm else 0


def _core(core: Operator, before: list[Operator], tokens: int) -> dict[str, Any]:
    """What is kept: keys and values by head, latents, or a state."""
    if core.scan is not None:
        each = replace(
            core.scan, steps=core.scan.steps / tokens, recurrent=core.scan.recurrent / tokens
        )
        return {
            "scan": each, "scan_flops": core.flops / tokens,
            "scan_moved": core.moved / tokens,
        }  # fmt: skip
    a = core.attention
    assert a is not None, "a core is attention or a scan"
    latent = sum(o.gemm.n for o in before if o.gemm and o.name.endswith(LATENT))
    return {
        "heads": a.heads, "kv_heads": 1 if latent else a.kv_heads, "head_dim": a.head_dim,
        "window": a.window, "latent": latent,
    }  # fmt: skip
