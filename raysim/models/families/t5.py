"""T5: ``transformers/models/t5``. Encoder-decoder with relative position biases.

``seq_len`` is the encoder's length, ``target_len`` the decoder's. The first block of each stack
owns the bias table; the biases themselves are shared by the batch and not counted. Embeddings and
the vocabulary projection are one tensor: transformers 5 ties them whatever ``tie_word_embeddings``
says. The encoder's output, kept once for all decoder blocks, is counted in the first. Not modelled:
what a pipeline stage must send of the encoder's output to later decoder blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.errors import ScenarioError
from raysim.models.activations import ACTIVATIONS
from raysim.models.attention import Core, attend
from raysim.models.config import MOST_LAYERS, Reader
from raysim.models.feedforward import Names, glu, mlp
from raysim.models.heads import linear_head, lm_head
from raysim.models.request import Request, assemble, block_layer, count_labels, unsupported
from raysim.models.table import Body, Implementation, Layer, Model, Module, Parameter
from raysim.models.tape import Tape, Tensor

NO_FLASH: tuple[Implementation, ...] = ("eager", "sdpa")


@dataclass(frozen=True, slots=True, kw_only=True)
class T5:
    """Dimensions of one T5."""

    vocab: int
    hidden: int
    kv: int
    inner: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    buckets: int
    drop: float
    act: str
    gated: bool
    scaled: bool
    """The original T5 scales the decoder's output ahead of the projection."""
    implementation: Implementation


def t5(request: Request, r: Reader) -> Model:
    """``T5Config``."""
    count = r.integer("num_layers", "num_hidden_layers", default=6, most=MOST_LAYERS)
    kind = r.values.get("feed_forward_proj", "relu")
    is_gated = isinstance(kind, str) and kind.startswith("gated-")
    act = kind.rpartition("-")[2] if isinstance(kind, str) else ""
    if act not in ACTIVATIONS:
        r.refuse("feed_forward_proj", "expected an activation, or gated- and an activation")
        act = "relu"
    d = T5(
        vocab=r.integer("vocab_size", default=32128),
        hidden=r.integer("d_model", "hidden_size", default=512),
        kv=r.integer("d_kv", "head_dim", default=64),
        inner=r.integer("d_ff", default=2048),
        encoder_layers=count,
        decoder_layers=r.optional_integer("num_decoder_layers") or count,
        heads=r.integer("num_heads", "num_attention_heads", default=8),
        buckets=r.integer("relative_attention_num_buckets", default=32),
        drop=r.probability("dropout_rate", default=0.1),
        act="gelu_new" if kind == "gated-gelu" else act,
        gated=is_gated,
        scaled=r.values.get("tie_word_embeddings") is not False,
        implementation=request.implementation(NO_FLASH, r),
    )
    tokens = request.positions(r, r.optional_integer("n_positions", default=512))
    target = tokens if request.target_len is None else request.target_len
    if not 1 <= target <= 2**27:
        r.refuse("target_len", f"{target} is out of range")
    r.check()
    encoder_only = request.architecture.endswith("EncoderModel")
    layers = _stack(d, "encoder", tokens, 0)
    if not encoder_only:
        layers += _stack(d, "decoder", target, tokens)
        layers += _head(request, r, d, target)
    return assemble(
        request, r, [_shared(d), *layers], seq_len=tokens, hidden=d.hidden, vocab=d.vocab,
        divisible=(("num_heads", d.heads), ("d_ff", d.inner)),
    )  # fmt: skip


def _shared(d: T5) -> Layer:
    """The embedding table that encoder, decoder and projection look into."""
    weight = Parameter(name="weight", shape=(d.vocab, d.hidden), shard=0)
    body = Body(modules=(Module(name="", cls="Embedding", parameters=(weight,)),))
    return Layer(name="shared", kind="other", cls="Embedding", body=body, output=0.0)


def _head(request: Request, r: Reader, d: T5, target: int) -> list[Layer]:
    if request.head == "Model":
        return []
    if request.head == "ForQuestionAnswering":
        return [linear_head("qa_outputs", target, d.hidden, count_labels(r))]
    if request.head not in ("ForConditionalGeneration", "ForCausalLM"):
        raise ScenarioError(unsupported(request))
    return [
        lm_head(
            target, d.hidden, d.vocab, tied_to="shared.weight", fused_loss=request.fused_loss,
            scaled=d.scaled, upcast=False,
        )
    ]  # fmt: skip


def _stack(d: T5, name: str, tokens: int, source: int) -> list[Layer]:
    """Embedding, blocks and final norm of one side; ``source`` > 0: decoder over so many tokens."""
    output = float(tokens * d.hidden)
    count = d.decoder_layers if source else d.encoder_layers
    first = _block(d, tokens, source, first=True)
    rest = _block(d, tokens, source, first=False)
    tape = Tape()
    ids = "decoder_input_ids" if source else "input_ids"
    x = tape.embedding(
        "", tokens, d.hidden, d.vocab, vocab_parallel=True, ids=ids, tied_to="shared.weight"
    )
    tape.dropout("dropout", x, d.drop)
    layers = [
        Layer(
            name=f"{name}.embed_tokens", kind="embedding", cls="Embedding", body=tape.body(),
            output=output,
        )
    ]  # fmt: skip
    layers += [
        block_layer(f"{name}.block.{i}", "T5Block", rest if i else first, output)
        for i in range(count)
    ]
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=d.hidden)
    x = tape.rms_norm("", x, cls="T5LayerNorm", style="t5")
    tape.dropout("dropout", x, d.drop)
    layers.append(
        Layer(
            name=f"{name}.final_layer_norm", kind="norm", cls="T5LayerNorm", body=tape.body(),
            output=output,
        )
    )  # fmt: skip
    return layers


def _block(d: T5, tokens: int, source: int, *, first: bool) -> Body:
    """``T5Block.forward``: self-attention, in the decoder cross-attention, feed-forward."""
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=d.hidden)
    x = _attention(tape, d, "layer.0", "SelfAttention", x, None, bias=first, causal=source > 0)
    if source:
        encoded = Tensor(name="encoder_output", rows=source, width=d.hidden)
        x = _attention(tape, d, "layer.1", "EncDecAttention", x, encoded, keep=first)
    sub = "layer.2" if source else "layer.1"
    h = tape.rms_norm(f"{sub}.layer_norm", x, cls="T5LayerNorm", style="t5")
    ff = f"{sub}.DenseReluDense"
    if d.gated:
        names = Names(first=f"{ff}.wi_1", gate=f"{ff}.wi_0", second=f"{ff}.wo", act=f"{ff}.act")
        h = glu(tape, names, h, d.inner, d.act, cls="T5DenseGatedActDense", dropout=d.drop)
    else:
        names = Names(first=f"{ff}.wi", second=f"{ff}.wo", act=f"{ff}.act")
        h = mlp(tape, names, h, d.inner, d.act, bias=False, dropout=d.drop)
    h = tape.dropout(f"{sub}.dropout", h, d.drop)
    tape.add(sub, x, h, cls="T5LayerFF")
    return tape.body()


def _attention(
    tape: Tape,
    d: T5,
    sub: str,
    module: str,
    x: Tensor,
    source: Tensor | None,
    *,
    bias: bool = False,
    causal: bool = False,
    keep: bool = True,
) -> Tensor:
    """One attention sub-layer; keys and values come from ``source`` in cross-attention."""
    name, width = f"{sub}.{module}", d.heads * d.kv
    h = tape.rms_norm(f"{sub}.layer_norm", x, cls="T5LayerNorm", style="t5")
    q = tape.linear(f"{name}.q", h, width, bias=False, split="column")
    kv_input = h if source is None else source
    k, v = (
        tape.linear(f"{name}.{p}", kv_input, width, bias=False, split="column", keep=keep)
        for p in "kv"
    )
    if bias:
        table = Parameter(
            name=f"{name}.relative_attention_bias.weight", shape=(d.buckets, d.heads), shard=1
        )
        tape.append(f"{name}.relative_attention_bias", "Embedding", parameters=(table,))
    core = Core(
        heads=d.heads, kv_heads=d.heads, head_dim=d.kv, v_head_dim=d.kv, causal=causal,
        implementation=d.implementation, dropout=d.drop, upcast_softmax=False,
        biased=source is None,
        # Biases are learnt, and a permuted look-up: no fused kernel takes such a mask.
        unfused=source is None,
    )  # fmt: skip
    out = attend(tape, name, q, k, v, core, cls="T5Attention")
    out = tape.linear(f"{name}.o", out, d.hidden, bias=False, split="row")
    out = tape.dropout(f"{sub}.dropout", out, d.drop)
    return tape.add(sub, x, out, cls="T5LayerSelfAttention")
