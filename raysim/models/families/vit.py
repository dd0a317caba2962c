"""Vision Transformer: ``transformers/models/vit``. Tokens are patches plus one class token."""

from __future__ import annotations

from typing import Any

from raysim.errors import Problem, ScenarioError
from raysim.models.activations import ACTIVATIONS
from raysim.models.attention import Core, attend
from raysim.models.config import MOST_LAYERS, Reader
from raysim.models.feedforward import Names, mlp
from raysim.models.heads import linear_head
from raysim.models.request import (
    Request,
    assemble,
    block_layer,
    count_labels,
    norm_layer,
    prefix,
    unsupported,
)
from raysim.models.shapes import Convolution
from raysim.models.table import Body, Gemm, Implementation, Layer, Model, Operator, Parameter, Saved
from raysim.models.tape import Tape, Tensor

ALL: tuple[Implementation, ...] = ("eager", "sdpa", "flash_attention_2")


def size_pair(r: Reader, key: str, default: int) -> tuple[int, int]:
    """Height and width of ``key``: one number, or a list of two."""
    value: Any = r.values.get(key)
    if isinstance(value, list):
        pair = r.integers(key)
        if pair is None or len(pair) != 2 or not all(1 <= p <= 2**16 for p in pair):
            r.refuse(key, "expected one size or a list of two")
            return default, default
        return pair[0], pair[1]
    size = r.integer(key, default=default, most=2**16)
    return size, size


def vit(request: Request, r: Reader) -> Model:
    """``ViTConfig``."""
    hidden = r.integer("hidden_size", default=768)
    heads = r.integer("num_attention_heads", default=12)
    count = r.integer("num_hidden_layers", default=12, most=MOST_LAYERS)
    inner = r.integer("intermediate_size", default=3072)
    act = r.choice("hidden_act", default="gelu", among=ACTIVATIONS)
    drop = r.probability("hidden_dropout_prob")
    attn_drop = r.probability("attention_probs_dropout_prob")
    bias = r.flag("qkv_bias", default=True)
    image, patch = size_pair(r, "image_size", 224), size_pair(r, "patch_size", 16)
    channels = r.integer("num_channels", default=3)
    pooled = r.optional_integer("pooler_output_size") or hidden
    pooler_act = r.choice("pooler_act", default="tanh", among=ACTIVATIONS)
    for size, step in zip(image, patch, strict=True):
        if size % step:
            r.refuse("patch_size", f"{step} does not divide image_size ({size})")
    r.divides("num_attention_heads", heads, "hidden_size", hidden)
    patches = (image[0] // patch[0]) * (image[1] // patch[1])
    tokens = patches + 1
    if request.seq_len not in (None, tokens):
        r.problems.append(
            Problem(message=f"seq_len {request.seq_len}: these images have {tokens} tokens")
        )
    head_dim = max(1, hidden // heads)
    core = Core(
        heads=heads, kv_heads=heads, head_dim=head_dim, v_head_dim=head_dim, causal=False,
        implementation=request.implementation(ALL, r), dropout=attn_drop,
    )  # fmt: skip
    labels = count_labels(r)
    r.check()
    name = prefix(request, "vit")
    body = _block(tokens, hidden, inner, act, drop, core, bias=bias)
    output = float(tokens * hidden)
    layers = [_embedding(f"{name}embeddings", hidden, channels, image, patch, tokens, drop)]
    layers += [block_layer(f"{name}layers.{i}", "ViTLayer", body, output) for i in range(count)]
    layers.append(norm_layer(f"{name}layernorm", "LayerNorm", tokens, hidden))
    if request.head == "Model":
        layers.append(_pooler(tokens, hidden, pooled, pooler_act))
    elif request.head == "ForImageClassification":
        layers.append(linear_head("classifier", 1, hidden, labels, view_of=tokens))
    else:
        raise ScenarioError(unsupported(request))
    return assemble(
        request, r, layers, seq_len=tokens, hidden=hidden, vocab=None, sample_unit="images",
        divisible=[("num_attention_heads", heads), ("intermediate_size", inner)],
    )  # fmt: skip


def _embedding(
    name: str,
    hidden: int,
    channels: int,
    image: tuple[int, int],
    patch: tuple[int, int],
    tokens: int,
    drop: float,
) -> Layer:
    """Patches by a strided convolution, class token, learned positions."""
    tape = Tape()
    pixels = float(channels * image[0] * image[1])
    k, rows = channels * patch[0] * patch[1], tokens - 1
    x = Tensor(name="patches", rows=rows, width=hidden)
    projection = "patch_embeddings.projection"
    given = Saved(name="pixel_values", numel=pixels)
    conv = Operator(
        name=projection, kind="conv", flops=2.0 * rows * k * hidden, moved=pixels + x.numel,
        # The pixels need no gradient: backward is the weight's alone.
        moved_backward=pixels + 2 * x.numel, gemm=Gemm(rows=rows, n=hidden, k=k),
        gradients="weights",
        conv=Convolution(
            taps=patch[0] * patch[1], steps=patch[0] * patch[1], biased=True
        ),
        saves=(given,), output=x.numel, kernels=2, kernels_backward=2, reads=(given,),
        result=x.name, autocast="half",
    )  # fmt: skip
    tape.append(
        projection, "Conv2d", conv,
        parameters=(
            Parameter(name=f"{projection}.weight", shape=(hidden, channels, *patch)),
            Parameter(name=f"{projection}.bias", shape=(hidden,)),
        ),
    )  # fmt: skip
    full = Tensor(name="tokens", rows=tokens, width=hidden)
    full = tape.run(
        "", "ViTEmbeddings", operator="cat", inputs=(x,), output=full, moved=2 * full.numel,
        moved_backward=2 * full.numel,
        parameters=(
            Parameter(name="cls_token", shape=(1, 1, hidden)),
            Parameter(name="position_embeddings", shape=(1, tokens, hidden)),
        ),
    )  # fmt: skip
    positions = Tensor(name="positions", rows=tokens, width=hidden)
    full = tape.add("", full, positions, cls="ViTEmbeddings", operator="add_positions")
    tape.dropout("dropout", full, drop)
    return Layer(
        name=name, kind="embedding", cls="ViTEmbeddings", body=tape.body(), output=full.numel
    )


def _block(
    tokens: int, hidden: int, inner: int, act: str, drop: float, core: Core, *, bias: bool
) -> Body:
    """``ViTLayer.forward``."""
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    h = tape.layer_norm("layernorm_before", x)
    q, k, v = (
        tape.linear(f"attention.{p}_proj", h, hidden, bias=bias, split="column") for p in "qkv"
    )
    h = attend(tape, "attention", q, k, v, core, cls="ViTAttention")
    h = tape.linear("attention.o_proj", h, hidden, split="row")
    h = tape.dropout("attention_dropout", h, drop)
    x = tape.add("", h, x, cls="ViTLayer", operator="attention_residual")
    h = tape.layer_norm("layernorm_after", x)
    names = Names(first="mlp.fc1", second="mlp.fc2", act="mlp.activation_fn")
    h = mlp(tape, names, h, inner, act)
    h = tape.dropout("mlp_dropout", h, drop)
    tape.add("", h, x, cls="ViTLayer", operator="mlp_residual")
    return tape.body()


def _pooler(tokens: int, hidden: int, pooled: int, act: str) -> Layer:
    tape = Tape()
    token = Tensor(name="class_token", rows=1, width=hidden, storage=tokens * hidden)
    x = tape.linear("", token, pooled)
    tape.activation("act", x, act)
    return Layer(
        name="pooler.dense", kind="head", cls="Linear", body=tape.body(), output=float(pooled)
    )
