"""Megatron-LM's GPT as Megatron-DeepSpeed runs it, with its fused kernels.

``megatron/model/{transformer,gpt_model,language_model}.py``; there is no Hugging Face class, so the
keys are those of Megatron's ``arguments.py``. Fused, as by default: scale, causal mask and softmax
(``masked_softmax_fusion``), bias and GELU (``bias_gelu_fusion``), bias, dropout and residual
(``bias_dropout_fusion``), LayerNorm (apex). The loss is ``vocab_parallel_cross_entropy`` in fp32.

What that costs the host: since June 2022 (``moe_zeros``; not in Megatron-LM or BigScience's fork)
every layer makes two zeros on the GPU (losses and bias of experts it has not), each a copy that the
host waits for; linear layers, their tensor-parallel regions and the fused kernels are autograd
functions written in Python.

In Megatron-core the same arguments make today's GPT: Transformer Engine's modules, with biases.
"""

from __future__ import annotations

from raysim.models.attention import Core, attend
from raysim.models.config import MOST_LAYERS, Reader
from raysim.models.families.gpt import embedding_layer
from raysim.models.families.megatron_core import Grouped, Plain, Style, megatron_model
from raysim.models.feedforward import Names, mlp
from raysim.models.request import Request, assemble, block_layer, norm_layer, unsupported
from raysim.models.table import Body, Layer, Model, Operator, Saved
from raysim.models.tape import Tape, Tensor

BLOCK = "ParallelTransformerLayer"
PYTHON_FUNCTION = 4
"""ATen operators that an autograd function in Python costs the host as much as, besides those it
calls. Chosen on Megatron-DeepSpeed's layer on tiny tensors on a CPU, where its fused kernels are 25
operators more (1842 and 1471 us on the host of ``host_dispatch.csv``): forward and backward sum to
1 % more than measured, forward alone is 28 % less, backward 36 % more."""


def megatron_gpt(request: Request, r: Reader) -> Model:
    """``pretrain_gpt.py``; ``padded_vocab_size`` is what its log says of the vocabulary.

    Without ``masked_softmax_fusion`` the softmax is torch's, in fp32, of masked scores; so it is
    where heads on a rank times micro-batch are no multiple of four (``fused_softmax.py``), which a
    table per sample cannot know.
    """
    hidden = r.integer("hidden_size", default=1024)
    heads = r.integer("num_attention_heads", default=16)
    count = r.integer("num_layers", default=24, most=MOST_LAYERS)
    limit = r.integer("max_position_embeddings", default=1024, most=2**27)
    inner = r.optional_integer("ffn_hidden_size") or 4 * hidden
    vocab = r.integer("padded_vocab_size", "vocab_size", default=50304)
    drop = r.probability("hidden_dropout", default=0.1)
    attention_drop = r.probability("attention_dropout", default=0.1)
    fused = r.flag("masked_softmax_fusion", default=True)
    moe_zeros = r.flag("moe_zeros", default=True)
    r.divides("num_attention_heads", heads, "hidden_size", hidden)
    if request.head != "ForCausalLM":
        r.problems.append(unsupported(request))
    tokens = request.positions(r, limit, hard=True, key="max_position_embeddings")
    r.check()
    divisible = [("num_attention_heads", heads), ("ffn_hidden_size", inner)]
    if request.library == "megatron_core":
        attention = Grouped(
            heads=heads, kv_heads=heads, head_dim=hidden // heads, qkv_bias=True, proj_bias=True,
            rotary=False, dropout=attention_drop,
        )  # fmt: skip
        return megatron_model(
            request, r, [(attention, Plain(width=inner, bias=True))] * count, tokens=tokens,
            hidden=hidden, vocab=vocab, tied=True, divisible=divisible,
            style=Style(layer_norm=True, positions=limit, drop=drop),
        )  # fmt: skip
    flash = request.attention.startswith("flash_attention_")
    core = Core(
        heads=heads, kv_heads=heads, head_dim=hidden // heads, v_head_dim=hidden // heads,
        implementation=request.attention if flash else "eager", fused_softmax=fused and not flash,
        dropout=attention_drop, scales=False,
    )  # fmt: skip
    embedding = embedding_layer(
        "embedding", tokens, hidden, vocab, table="word_embeddings",
        positions=("position_embeddings", limit), dropout=drop,
    )  # fmt: skip
    body = _block(tokens, hidden, inner, drop, core, moe_zeros=moe_zeros)
    output = float(tokens * hidden)
    layers = [
        embedding,
        *(block_layer(f"layers.{i}", BLOCK, body, output) for i in range(count)),
        norm_layer("final_layernorm", "LayerNorm", tokens, hidden),
        _head(tokens, hidden, vocab),
    ]
    return assemble(
        request, r, layers, seq_len=tokens, hidden=hidden, vocab=vocab,
        divisible=divisible,
    )  # fmt: skip


def _block(
    tokens: int, hidden: int, inner: int, drop: float, core: Core, *, moe_zeros: bool
) -> Body:
    tape, cls = Tape(), "ParallelAttention"
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    h = tape.layer_norm("input_layernorm", x, views=PYTHON_FUNCTION)
    own = 2 * PYTHON_FUNCTION  # the product, and the region around it
    qkv = tape.linear("self_attention.query_key_value", h, 3 * hidden, split="column", views=own)
    q, k, v = tape.split("self_attention", qkv, [hidden] * 3, cls=cls)
    h = attend(tape, "self_attention", q, k, v, core, cls=cls)
    h = tape.linear("self_attention.dense", h, hidden, split="row", views=own)
    x = _dropout_add(tape, "attention", x, h, drop)
    h = tape.layer_norm("post_attention_layernorm", x, views=PYTHON_FUNCTION)
    zeros = (
        Operator(name=name, kind="sync", kernels=0, kernels_backward=0, dispatches=2)
        for name in ("moe_loss", "mlp_bias")
    )
    if moe_zeros:
        tape.append("", BLOCK, *zeros)
    names = Names(first="mlp.dense_h_to_4h", second="mlp.dense_4h_to_h", act="mlp.gelu")
    h = mlp(tape, names, h, inner, "gelu", views=own)
    _dropout_add(tape, "mlp", x, h, drop)
    return tape.body()


def _dropout_add(tape: Tape, name: str, residual: Tensor, h: Tensor, drop: float) -> Tensor:
    """``bias_dropout_add_fused_train``: one kernel; keeps the mask, a byte per element."""
    n = h.numel
    mask = Saved(name=f"{name}.mask", numel=n, dtype="bool")
    return tape.run(
        name, "bias_dropout_add", inputs=(residual, h), saves=(mask,) if drop else (),
        output=Tensor(name=f"{name}.residual", rows=h.rows, width=h.width),
        moved=(3.5 if drop else 3.0) * n,
        moved_backward=2.5 * n if drop else 0.0, kernels_backward=1 if drop else 0,
        views=1,  # the bias expanded
    )  # fmt: skip


def _head(tokens: int, hidden: int, vocab: int) -> Layer:
    """Logits over the tied word embeddings; ``vocab_parallel_cross_entropy`` of their fp32 copy.

    Forward: cast, row maximum, subtraction, exponential, its sum, division, each over the whole;
    the fp32 softmax is kept. Backward scales it in place and casts.
    """
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    logits = tape.linear(
        "", x, vocab, bias=False, split="column", tied_to="embedding.word_embeddings.weight"
    )
    softmax = Saved(name="loss.softmax", numel=logits.numel, dtype="fp32", sharded=logits.sharded)
    tape.run(
        "", "VocabParallelCrossEntropy", kind="loss", operator="loss", inputs=(logits,),
        output=Tensor(name="loss.out", rows=tokens, width=1),
        moved=(3 + 2 + 4 + 4 + 2 + 4) * logits.numel, kernels=12,
        moved_backward=(4 + 3) * logits.numel, kernels_backward=5,
        saves=(softmax,), split="heads" if logits.sharded else "none",
    )  # fmt: skip
    return Layer(name="lm_head", kind="head", cls="Linear", body=tape.body(), output=1)
