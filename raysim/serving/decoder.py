"""A decoder-only transformer as inference sees it: weights read and keys kept, per layer.

Read from an unmodified Hugging Face ``config.json``. The layer tables of ``models`` say what a
training step computes at one sequence length; an engine's iterations mix prompts and single tokens
of any length, so it keeps widths instead. Parameter counts of both are equal (a test holds it).

Not modelled: vision towers, encoder-decoders, low-rank adapters, speculative decoding, and formats
of weights other than those of ``WEIGHT_BYTES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysim.models.config import HfConfig, Reader

BF16_BYTES = 2.0
MXFP4_BYTES = 4.25 / 8
"""Four bits, and a scale of eight bits per 32 weights (OCP Microscaling Formats, MXFP4)."""
INT4_BYTES = 0.5 + 2.5 / 128
"""Four bits, and per group of 128 a scale of 16 and a zero of four bits (AWQ, GPTQ)."""
WEIGHT_BYTES = {"fp8": 1.0, "awq": INT4_BYTES, "gptq": INT4_BYTES, "mxfp4": MXFP4_BYTES}
"""Per weight of a quantised product, by ``quantization_config.quant_method``."""
DENSE = ("llama", "mistral", "qwen2", "qwen3", "phi3")
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One kind of layer, and how many the model has."""

    count: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    """Sliding window in tokens; None: all keys are read."""
    latent: int = 0
    """Elements that multi-head latent attention keeps per token; 0: keys and values by head."""
    attention_parameters: int
    dense_width: int = 0
    """Of a gated feed-forward, or of experts that every token passes; 0: none."""
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0

    @property
    def kv_elements(self) -> int:
        """Kept per token, of all tensor-parallel ranks."""
        return self.latent or 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Widths of a model, and bytes per weight."""

    name: str
    hidden: int
    vocabulary: int
    tied: bool
    blocks: tuple[Block, ...]
    weight_bytes: float = BF16_BYTES
    """Of attention's and dense products."""
    expert_bytes: float = BF16_BYTES

    @property
    def layers(self) -> int:
        """Transformer blocks."""
        return sum(b.count for b in self.blocks)

    def expert_parameters(self, block: Block) -> int:
        """Of one routed expert of a block: gate, up and down."""
        return 3 * self.hidden * block.expert_width

    def other_parameters(self, block: Block) -> int:
        """Of one block's products that every token passes."""
        router = self.hidden * block.experts
        return block.attention_parameters + 3 * self.hidden * block.dense_width + router

    @property
    def parameters(self) -> int:
        """Of all products and embeddings; norms and biases, a millionth, are left out."""
        blocks = sum(
            b.count * (self.other_parameters(b) + b.experts * self.expert_parameters(b))
            for b in self.blocks
        )
        return blocks + self.hidden * self.vocabulary * (1 if self.tied else 2)

    @property
    def total_bytes(self) -> float:
        """Of all weights as they lie in GPU memory."""
        vocabulary = self.hidden * self.vocabulary * (1 if self.tied else 2) * BF16_BYTES
        return vocabulary + sum(
            b.count
            * (
                self.other_parameters(b) * self.weight_bytes
                + b.experts * self.expert_parameters(b) * self.expert_bytes
            )
            for b in self.blocks
        )


def read_decoder(config: Mapping[str, Any], *, file: str = "config.json") -> Decoder:
    """A decoder from the keys of a ``config.json``.

    Raises
    ------
    ScenarioError
        The family or the format of weights is unknown, or a key is impossible; every problem.
    """
    text = ""
    if isinstance(config, HfConfig):
        file, text = config.file, config.text
    r = Reader(config, file=file, text=text)
    family = config.get("model_type")
    if family not in (*DENSE, *MIXTURES):
        known = ", ".join((*DENSE, *MIXTURES))
        r.refuse("model_type", f"{family!r} cannot be served yet; known: {known}")
        r.check()
    hidden = r.integer("hidden_size", default=4096)
    method = _quantised(r)
    made = Decoder(
        name=str(config.get("_name_or_path") or family),
        hidden=hidden,
        vocabulary=r.integer("vocab_size", default=32000),
        tied=r.flag("tie_word_embeddings", default=False),
        blocks=_blocks(r, str(family), hidden),
        weight_bytes=BF16_BYTES if method in (None, "mxfp4") else WEIGHT_BYTES[method],
        expert_bytes=BF16_BYTES if method is None else WEIGHT_BYTES[method],
    )
    r.check()
    return made


def _quantised(r: Reader) -> str | None:
    """``quant_method`` of products; mxfp4 is of experts alone: gpt-oss keeps the rest in bf16."""
    if not r.has("quantization_config"):
        return None
    section = r.section("quantization_config")
    method = section.values.get("quant_method")
    if method not in WEIGHT_BYTES:
        known = ", ".join(WEIGHT_BYTES)
        section.refuse("quant_method", f"{method!r} is not modelled; known: {known}")
        return None
    return str(method)


def _blocks(r: Reader, family: str, hidden: int) -> tuple[Block, ...]:
    layers = r.integer("num_hidden_layers", default=32, most=4096)
    heads = r.integer("num_attention_heads", default=32)
    kv_heads = r.integer("num_key_value_heads", default=heads)
    width = r.integer("intermediate_size", default=11008)
    if family in ("deepseek_v2", "deepseek_v3"):
        return _deepseek(r, hidden, layers, heads, width)
    head_dim = r.integer("head_dim", default=hidden // heads)
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    shape: dict[str, Any] = {
        "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
        "attention_parameters": attention,
    }  # fmt: skip
    if family in MIXTURES:
        shape |= _experts(r, family, width)
    else:
        shape["dense_width"] = width
    windowed = _windowed(r, family, layers)
    window = r.integer("sliding_window", default=4096) if windowed else None
    return tuple(
        Block(count=count, window=w, **shape)
        for count, w in ((layers - windowed, None), (windowed, window))
        if count
    )


def _windowed(r: Reader, family: str, layers: int) -> int:
    """Layers that slide: by ``layer_types``; all of Mistral where it says a window."""
    types = r.values.get("layer_types")
    if isinstance(types, list):
        return sum(t == "sliding_attention" for t in types)
    if family == "gpt_oss":
        return layers // 2
    return layers if family == "mistral" and r.has("sliding_window") else 0


def _experts(r: Reader, family: str, width: int) -> dict[str, int]:
    many = {"mixtral": 8, "qwen2_moe": 60, "qwen3_moe": 128, "gpt_oss": 128}[family]
    each = {"mixtral": 2, "qwen2_moe": 4, "qwen3_moe": 8, "gpt_oss": 4}[family]
    own = r.integer("moe_intermediate_size", default=width)
    shared = r.integer("shared_expert_intermediate_size", default=0, least=0)
    return {
        "experts": r.integer("num_local_experts", "num_experts", default=many),
        "experts_per_token": r.integer("num_experts_per_tok", default=each),
        "expert_width": own,
        "dense_width": shared if family == "qwen2_moe" else 0,
    }


def _deepseek(r: Reader, hidden: int, layers: int, heads: int, width: int) -> tuple[Block, ...]:
    """Multi-head latent attention: a token keeps one latent and one rotary key, for all heads."""
    rank = r.integer("kv_lora_rank", default=512)
    nope, rope = (
        r.integer("qk_nope_head_dim", default=128),
        r.integer("qk_rope_head_dim", default=64),
    )
    value = r.integer("v_head_dim", default=128)
    query_rank = r.integer("q_lora_rank", default=0, least=0) if r.has("q_lora_rank") else 0
    query = (
        query_rank * (hidden + heads * (nope + rope))
        if query_rank
        else hidden * heads * (nope + rope)
    )
    attention = (
        query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    )
    dense = min(layers, r.integer("first_k_dense_replace", default=1, least=0))
    own = r.integer("moe_intermediate_size", default=1407)
    shape: dict[str, Any] = {
        "heads": heads, "kv_heads": 1, "head_dim": nope + rope, "latent": rank + rope,
        "attention_parameters": attention,
    }  # fmt: skip
    routed = Block(
        count=layers - dense,
        dense_width=own * r.integer("n_shared_experts", default=2, least=0),
        experts=r.integer("n_routed_experts", default=64),
        experts_per_token=r.integer("num_experts_per_tok", default=6),
        expert_width=own,
        **shape,
    )
    first = Block(count=dense, dense_width=width, **shape)
    return tuple(b for b in (first, routed) if b.count)
