"""Hybrids of Mamba 2 and attention: Bamba, Granite 4's ``granitemoehybrid``, Nemotron-H.

``transformers/models/{bamba,granitemoehybrid,nemotron_h}``. Bamba and Granite put Mamba 2 where
attention would be in most layers, and a gated unit or experts behind it; Nemotron-H's layers are
one thing each: Mamba 2, attention, a unit without a gate, or experts without gates beside a shared
one, which may work on a narrower vector than the router sees. Attention is not rotated but in Bamba
and where Granite says so. Granite multiplies embeddings, branches and logits by numbers.

Heads that predict further tokens (``num_nextn_predict_layers``) are in checkpoints and not in these
classes. What runs of Mamba 2, and that none of it was timed, is said in ``models.mixers``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from raysim.models.activations import ACTIVATIONS
from raysim.models.attention import Core, attend, rotary
from raysim.models.config import Reader
from raysim.models.families.llama import ALL, Decoder, divisible_keys, gated, read_decoder
from raysim.models.families.mixture import chosen
from raysim.models.feedforward import Experts, Names, glu, mlp, moe
from raysim.models.heads import lm_head
from raysim.models.mixers import Mamba2
from raysim.models.request import Request, assemble, block_layer, decoder_heads, norm_layer, prefix
from raysim.models.table import Body, Implementation, Layer, Model
from raysim.models.tape import Tape, Tensor

LINEAR, FULL = "linear_attention", "full_attention"
LEGACY = {"mamba": LINEAR, "attention": FULL}
"""Names of layer types before transformers 5."""
PATTERN = {"M": LINEAR, "*": FULL, "E": "moe", "-": "mlp"}
"""``hybrid_override_pattern``, a letter per layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What a family calls what is around its layers, and how its head works."""

    embedding: str = "embed_tokens"
    norm: str = "norm"
    style: str = "llama"
    scales: bool = False
    """Embeddings are multiplied, logits divided."""
    wide: bool = False
    """Logits are handed out in fp32."""


def _mixer(r: Reader, d: Decoder, cls: str) -> Mamba2:
    """``mamba_*`` of Bamba and Granite."""
    heads = r.integer("mamba_n_heads", default=128)
    width = r.integer("mamba_expand", default=2) * d.hidden
    said = r.values.get("mamba_d_head", "auto")
    if said == "auto":
        r.divides("mamba_n_heads", heads, "mamba_expand * hidden_size", width)
    head_dim = max(1, width // heads) if said == "auto" else r.integer("mamba_d_head", default=64)
    if said != "auto" and heads * head_dim != width:
        r.refuse("mamba_d_head", f"{heads} heads of {head_dim} are not {width} wide")
    groups = r.integer("mamba_n_groups", default=1)
    r.divides("mamba_n_groups", groups, "mamba_n_heads", heads)
    return Mamba2(
        name="mamba", cls=cls, heads=heads, head_dim=head_dim,
        state=r.integer("mamba_d_state", default=256), groups=groups,
        taps=r.integer("mamba_d_conv", default=4), chunk=r.integer("mamba_chunk_size", default=256),
        conv_bias=r.flag("mamba_conv_bias", default=True),
        bias=r.flag("mamba_proj_bias", default=False), keys=("mamba_n_heads", "mamba_n_groups"),
    )  # fmt: skip


def _attention(
    tape: Tape,
    name: str,
    d: Decoder,
    h: Tensor,
    implementation: Implementation,
) -> Tensor:
    """Grouped queries; ``rotary_dim`` None: not rotated."""
    cls, q_width, kv_width = f"{d.cls}Attention", d.heads * d.head_dim, d.kv_heads * d.head_dim
    q, k, v = (
        tape.linear(f"{name}.{p}_proj", h, w, bias=d.qkv_bias, split="column")
        for p, w in (("q", q_width), ("k", kv_width), ("v", kv_width))
    )
    if d.rotary_dim:
        q, k = rotary(tape, name, [q, k], d.head_dim, d.rotary_dim, cls=cls)
    core = Core(
        heads=d.heads, kv_heads=d.kv_heads, head_dim=d.head_dim, v_head_dim=d.head_dim,
        implementation=implementation, dropout=d.attention_dropout,
        copies_output=bool(d.rotary_dim) and d.rotary_dim != d.head_dim,
    )  # fmt: skip
    out = attend(tape, name, q, k, v, core, cls=cls)
    return tape.linear(f"{name}.o_proj", out, d.hidden, bias=d.o_bias, split="row")


def _mixed(
    tape: Tape, d: Decoder, mixer: Mamba2 | None, x: Tensor, implementation: Implementation
) -> Tensor:
    """What the first half of a layer adds to ``x``: its mixer's output, or attention's."""
    h = tape.rms_norm("input_layernorm", x, cls=f"{d.cls}RMSNorm")
    if mixer is not None:
        return mixer.run(tape, h)
    return _attention(tape, "self_attn", d, h, implementation)


def _model(
    request: Request,
    r: Reader,
    d: Decoder,
    kinds: Sequence[str],
    layer: Callable[[str, int, Implementation], Body],
    ends: Ends,
    divisible: Sequence[tuple[str, int]],
) -> Model:
    """Layers of the given kinds, each kind built once."""
    tokens = request.positions(r, d.positions)
    implementation = request.implementation(ALL, r)
    r.check()
    name = prefix(request, "model")
    size = float(tokens * d.hidden)
    tape = Tape()
    x = tape.embedding("", tokens, d.hidden, d.vocab, vocab_parallel=True)
    if ends.scales:
        tape.scale("", x, cls=f"{d.cls}Model")
    embedding = f"{name}{ends.embedding}"
    layers = [
        Layer(name=embedding, kind="embedding", cls="Embedding", body=tape.body(), output=size)
    ]
    bodies = {kind: layer(kind, tokens, implementation) for kind in dict.fromkeys(kinds)}
    block = f"{d.cls}Block" if ends.wide else f"{d.cls}DecoderLayer"
    layers += [
        block_layer(f"{name}layers.{i}", block, bodies[kind], size) for i, kind in enumerate(kinds)
    ]
    style = ends.style
    layers.append(
        norm_layer(f"{name}{ends.norm}", f"{d.cls}RMSNorm", tokens, d.hidden, style=style)
    )
    tied_to = f"{embedding}.weight" if d.tied else None
    if request.head == "ForCausalLM":
        layers.append(lm_head(
            tokens, d.hidden, d.vocab, tied_to=tied_to, fused_loss=request.fused_loss,
            divided=ends.scales, wide=ends.wide,
        ))  # fmt: skip
    else:
        layers += decoder_heads(
            request, r, tokens=tokens, hidden=d.hidden, vocab=d.vocab, tied_to=tied_to
        )
    return assemble(
        request, r, layers, seq_len=tokens, hidden=d.hidden, vocab=d.vocab, divisible=divisible
    )


def bamba(request: Request, r: Reader) -> Model:
    """``BambaConfig``: ``attn_layer_indices`` have attention, half of each head rotated."""
    bias = r.flag("attention_bias", default=False)
    d = read_decoder(
        r, "Bamba",
        {
            "vocab_size": 128000, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 262144,
        },
        qkv_bias=bias, o_bias=bias, mlp_bias=r.flag("mlp_bias", default=False),
    )  # fmt: skip
    d = replace(d, rotary_dim=d.head_dim // 2)
    mixer = _mixer(r, d, "BambaMixer")
    attends = set(r.integers("attn_layer_indices") or ())

    def layer(kind: str, tokens: int, implementation: Implementation) -> Body:
        tape, cls, norm = Tape(), "BambaDecoderLayer", "BambaRMSNorm"
        x = Tensor(name="hidden", rows=tokens, width=d.hidden)
        h = _mixed(tape, d, mixer if kind == LINEAR else None, x, implementation)
        x = tape.add("", x, h, cls=cls, operator="mixer_residual")
        h = tape.rms_norm("pre_ff_layernorm", x, cls=norm)
        h = gated(tape, "feed_forward", h, d.width, d.act, cls="BambaMLP", bias=d.mlp_bias)
        tape.add("", x, h, cls=cls, operator="mlp_residual")
        return tape.body(built_first=("feed_forward", "input_layernorm", "pre_ff_layernorm"))

    kinds = [FULL if i in attends else LINEAR for i in range(d.layers)]
    ends = Ends(norm="final_layernorm")
    divisible = [*divisible_keys(d), *mixer.divisible]
    return _model(request, r, d, kinds, layer, ends, divisible)


def granitemoehybrid(request: Request, r: Reader) -> Model:
    """``GraniteMoeHybridConfig``: experts where there are any, beside a unit all tokens pass."""
    bias = r.flag("attention_bias", default=False)
    d = read_decoder(
        r, "GraniteMoeHybrid",
        {
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
            "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
        },
        qkv_bias=bias, o_bias=bias,
    )  # fmt: skip
    if r.values.get("position_embedding_type") == "rope":
        d = replace(d, rotary_dim=d.head_dim)
    mixer = _mixer(r, d, "GraniteMoeHybridMambaLayer")
    experts = r.integer("num_local_experts", "num_experts", default=8, least=0)
    spec = Experts(
        experts=experts, per_token=chosen(r, experts, 2) if experts else 0, width=d.width,
        act=d.act, cls="GraniteMoeHybrid", gate="block_sparse_moe.router",
        bank="block_sparse_moe.experts", router="chosen", weights_fp32=False,
    )  # fmt: skip
    shared = r.integer("shared_intermediate_size", default=1024)
    types = r.texts("layer_types", length=d.layers, among=(LINEAR, FULL, *LEGACY))

    def layer(kind: str, tokens: int, implementation: Implementation) -> Body:
        tape, cls, norm = Tape(), "GraniteMoeHybridDecoderLayer", "GraniteMoeHybridRMSNorm"
        x = Tensor(name="hidden", rows=tokens, width=d.hidden)
        h = _mixed(tape, d, mixer if kind == LINEAR else None, x, implementation)
        h = tape.scale("mixer", h, cls=cls)
        x = tape.add("", x, h, cls=cls, operator="mixer_residual")
        h = tape.rms_norm("post_attention_layernorm", x, cls=norm)
        routed = moe(tape, h, spec) if experts else None
        names = Names(
            first="shared_mlp.input_linear", second="shared_mlp.output_linear",
            act="shared_mlp.activation",
        )  # fmt: skip
        h = glu(tape, names, h, shared, d.act, cls="GraniteMoeHybridMLP", fused=True)
        if routed is not None:
            h = tape.add("experts", routed, h, cls=cls)
        h = tape.scale("mlp", h, cls=cls)
        tape.add("", x, h, cls=cls, operator="mlp_residual")
        return tape.body(
            built_first=("input_layernorm", "post_attention_layernorm", "block_sparse_moe",
                         "shared_mlp")
        )  # fmt: skip

    kinds = [LEGACY.get(t, t) for t in types or [LINEAR] * d.layers]
    divisible = [
        ("num_attention_heads", d.heads), ("num_key_value_heads", d.kv_heads),
        ("shared_intermediate_size", shared), *mixer.divisible,
        *([("intermediate_size", d.width)] if experts else []),
    ]  # fmt: skip
    return _model(request, r, d, kinds, layer, Ends(scales=True), divisible)


def _nemotron_mixer(r: Reader) -> Mamba2:
    heads, groups = (
        r.integer("mamba_num_heads", default=128),
        r.integer("n_groups", "mamba_n_groups", default=8),
    )
    r.divides("n_groups", groups, "mamba_num_heads", heads)
    return Mamba2(
        name="mixer", cls="NemotronHMamba2Mixer", heads=heads,
        head_dim=r.integer("mamba_head_dim", default=64),
        state=r.integer("ssm_state_size", default=128), groups=groups,
        taps=r.integer("conv_kernel", "mamba_d_conv", default=4),
        chunk=r.integer("chunk_size", "mamba_chunk_size", default=128),
        conv_bias=r.flag("use_conv_bias", "mamba_conv_bias", default=True),
        bias=r.flag("use_bias", default=False), keys=("mamba_num_heads", "n_groups"),
    )  # fmt: skip


def _nemotron_kinds(r: Reader) -> list[str]:
    """``layers_block_type``, or a letter per layer; ``num_hidden_layers`` is ignored."""
    listed = r.values.get("layers_block_type") or r.values.get("layer_types")
    if listed is not None:
        key = "layers_block_type" if r.values.get("layers_block_type") else "layer_types"
        among = (*PATTERN.values(), *LEGACY)
        count = len(listed) if isinstance(listed, list) else 0
        types = r.texts(key, length=count, among=among) or [LINEAR]
        return [LEGACY.get(t, t) for t in types]
    pattern = r.values.get("hybrid_override_pattern")
    if pattern is None:
        return [LINEAR, "moe", FULL, "mlp"]
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(PATTERN):
        r.refuse("hybrid_override_pattern", f"expected letters of {' '.join(PATTERN)}")
        return [LINEAR]
    return [PATTERN[letter] for letter in pattern]


def nemotron_h(request: Request, r: Reader) -> Model:
    """``NemotronHConfig``."""
    d = read_decoder(
        r, "NemotronH",
        {
            "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 21504,
            "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "max_position_embeddings": 4096,
        },
        mlp_bias=r.flag("mlp_bias", default=False),
    )  # fmt: skip
    act = r.choice("mlp_hidden_act", default="relu2", among=ACTIVATIONS)
    d = replace(d, act=act, tied=False)  # the class ties nothing
    mixer, kinds = _nemotron_mixer(r), _nemotron_kinds(r)
    experts = r.integer("n_routed_experts", "num_local_experts", default=8)
    groups = r.integer("n_group", default=1)
    r.divides("n_group", groups, "n_routed_experts", experts)
    spec = Experts(
        experts=experts, per_token=chosen(r, experts, 2), act=act, cls="NemotronH",
        width=r.integer("moe_intermediate_size", default=7688), gate="mixer.gate",
        bank="mixer.experts", router="grouped", gated=False,
    )  # fmt: skip
    shared = r.integer("moe_shared_expert_intermediate_size", default=7688)
    narrow = r.optional_integer("moe_latent_size")

    def unit(tape: Tape, name: str, h: Tensor, width: int) -> Tensor:
        names = Names(first=f"{name}.up_proj", second=f"{name}.down_proj", act=f"{name}.act_fn")
        return mlp(tape, names, h, width, act, bias=d.mlp_bias)

    def mixture(tape: Tape, h: Tensor) -> Tensor:
        low = None
        if narrow is not None:
            low = tape.linear("mixer.fc1_latent_proj", h, narrow, bias=d.mlp_bias)
        routed = moe(tape, h, spec, narrowed=low)
        if narrow is not None:
            routed = tape.linear("mixer.fc2_latent_proj", routed, d.hidden, bias=d.mlp_bias)
        beside = unit(tape, "mixer.shared_experts", h, shared)
        return tape.add("mixer", routed, beside, cls="NemotronHMoE")

    def layer(kind: str, tokens: int, implementation: Implementation) -> Body:
        tape = Tape()
        x = Tensor(name="hidden", rows=tokens, width=d.hidden)
        h = tape.rms_norm("norm", x, cls="NemotronHRMSNorm", style="gemma")
        if kind == LINEAR:
            h = mixer.run(tape, h)
        elif kind == FULL:
            h = _attention(tape, "mixer", d, h, implementation)
        else:
            h = mixture(tape, h) if kind == "moe" else unit(tape, "mixer", h, d.width)
        tape.add("", x, h, cls="NemotronHBlock", operator="residual")
        return tape.body()

    there = set(kinds)
    divisible = [*mixer.divisible] if LINEAR in there else []
    if FULL in there:
        divisible += [("num_attention_heads", d.heads), ("num_key_value_heads", d.kv_heads)]
    if "mlp" in there:
        divisible.append(("intermediate_size", d.width))
    if "moe" in there:
        divisible += [
            ("moe_intermediate_size", spec.width), ("moe_shared_expert_intermediate_size", shared),
        ]  # fmt: skip
    ends = Ends(embedding="embeddings", norm="norm_f", style="gemma", wide=True)
    return _model(request, r, d, kinds, layer, ends, divisible)
