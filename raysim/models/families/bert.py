"""Encoders: bert, roberta, distilbert (``transformers/models/...``).

Post-norm blocks, learned positions (RoBERTa's start after its padding index), a pooler where the
class has one, and a masked-language-model head whose loss is over every position.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from raysim.errors import ScenarioError
from raysim.models.activations import ACTIVATIONS
from raysim.models.attention import Core, attend
from raysim.models.config import MOST_LAYERS, Reader
from raysim.models.feedforward import Names, mlp
from raysim.models.heads import linear_head, logits_loss
from raysim.models.request import (
    Request,
    assemble,
    block_layer,
    count_labels,
    prefix,
    unsupported,
)
from raysim.models.table import Body, Implementation, Layer, Model, Parameter
from raysim.models.tape import Tape, Tensor

ALL: tuple[Implementation, ...] = ("eager", "sdpa", "flash_attention_2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a family calls the parts of a block."""

    layer: str
    cls: str
    embeddings: str
    attn: str
    qkv: tuple[str, str, str]
    out: str
    out_norm: str
    first: str
    second: str
    second_norm: str
    act: str


BERT = Words(
    layer="encoder.layer", cls="BertLayer", embeddings="BertEmbeddings",
    attn="attention.self", qkv=("query", "key", "value"),
    out="attention.output.dense", out_norm="attention.output.LayerNorm",
    first="intermediate.dense", second="output.dense", second_norm="output.LayerNorm",
    act="intermediate.intermediate_act_fn",
)  # fmt: skip
ROBERTA = replace(BERT, cls="RobertaLayer", embeddings="RobertaEmbeddings")
DISTILBERT = Words(
    layer="transformer.layer", cls="TransformerBlock", embeddings="Embeddings", attn="attention",
    qkv=("q_lin", "k_lin", "v_lin"), out="attention.out_lin", out_norm="sa_layer_norm",
    first="ffn.lin1", second="ffn.lin2", second_norm="output_layer_norm", act="ffn.activation",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Dimensions of one encoder."""

    vocab: int
    hidden: int
    inner: int
    layers: int
    heads: int
    act: str
    positions: int
    types: int
    """Rows of the token-type table; 0: none."""
    drop: float
    attn_drop: float
    classifier_drop: float
    tied: bool


def _read(r: Reader) -> Encoder:
    """``BertConfig`` and ``RobertaConfig``, whose defaults differ only in the vocabulary."""
    drop = r.probability("hidden_dropout_prob", default=0.1)
    has_own = r.has("classifier_dropout")
    for key in ("is_decoder", "add_cross_attention"):
        if r.flag(key, default=False):
            r.refuse(key, "decoder mode is not modelled")
    return Encoder(
        vocab=r.integer(
            "vocab_size", default=50265 if r.values["model_type"] == "roberta" else 30522
        ),
        hidden=r.integer("hidden_size", default=768),
        inner=r.integer("intermediate_size", default=3072),
        layers=r.integer("num_hidden_layers", default=12, most=MOST_LAYERS),
        heads=r.integer("num_attention_heads", default=12),
        act=r.choice("hidden_act", default="gelu", among=ACTIVATIONS),
        positions=r.integer("max_position_embeddings", default=512, most=2**27),
        types=r.integer("type_vocab_size", default=2),
        drop=drop,
        attn_drop=r.probability("attention_probs_dropout_prob", default=0.1),
        classifier_drop=r.probability("classifier_dropout") if has_own else drop,
        tied=r.flag("tie_word_embeddings", default=True),
    )


def bert(request: Request, r: Reader) -> Model:
    """``BertConfig``."""
    e = _read(r)
    return _build(request, r, e, BERT, base="bert", limit=e.positions, key="num_attention_heads")


def roberta(request: Request, r: Reader) -> Model:
    """``RobertaConfig``; positions start at ``pad_token_id + 1``."""
    e = _read(r)
    padding = r.optional_integer("pad_token_id", default=1, least=0)
    limit = max(1, e.positions - (1 if padding is None else padding) - 1)
    return _build(request, r, e, ROBERTA, base="roberta", limit=limit, key="num_attention_heads")


def distilbert(request: Request, r: Reader) -> Model:
    """``DistilBertConfig``."""
    e = Encoder(
        vocab=r.integer("vocab_size", default=30522),
        hidden=r.integer("dim", "hidden_size", default=768),
        inner=r.integer("hidden_dim", default=3072),
        layers=r.integer("n_layers", "num_hidden_layers", default=6, most=MOST_LAYERS),
        heads=r.integer("n_heads", "num_attention_heads", default=12),
        act=r.choice("activation", default="gelu", among=ACTIVATIONS),
        positions=r.integer("max_position_embeddings", default=512, most=2**27),
        types=0,
        drop=r.probability("dropout", default=0.1),
        attn_drop=r.probability("attention_dropout", default=0.1),
        classifier_drop=r.probability("seq_classif_dropout", default=0.2),
        tied=r.flag("tie_word_embeddings", default=True),
    )
    return _build(request, r, e, DISTILBERT, base="distilbert", limit=e.positions, key="n_heads")


def _build(
    request: Request, r: Reader, e: Encoder, words: Words, *, base: str, limit: int, key: str
) -> Model:
    r.divides(key, e.heads, "the hidden size", e.hidden)
    tokens = request.positions(r, limit, hard=True, key="max_position_embeddings")
    head_dim = max(1, e.hidden // e.heads)
    core = Core(
        heads=e.heads, kv_heads=e.heads, head_dim=head_dim, v_head_dim=head_dim, causal=False,
        implementation=request.implementation(ALL, r), dropout=e.attn_drop, upcast_softmax=False,
    )  # fmt: skip
    r.check()
    name = prefix(request, base)
    output = float(tokens * e.hidden)
    body = _block(e, words, tokens, core)
    layers = [_embedding(f"{name}embeddings", e, words.embeddings, tokens)]
    layers += [
        block_layer(f"{name}{words.layer}.{i}", words.cls, body, output) for i in range(e.layers)
    ]
    layers += _heads(request, r, e, base, name, tokens)
    return assemble(
        request, r, layers, seq_len=tokens, hidden=e.hidden, vocab=e.vocab,
        divisible=[(key, e.heads), ("intermediate_size", e.inner)],
    )  # fmt: skip


def _embedding(name: str, e: Encoder, cls: str, tokens: int) -> Layer:
    """Words, token types and positions (shared by the batch), norm, dropout."""
    tape = Tape()
    x = tape.embedding("word_embeddings", tokens, e.hidden, e.vocab, vocab_parallel=True)
    if e.types:
        t = tape.embedding("token_type_embeddings", tokens, e.hidden, e.types, ids="token_type_ids")
        x = tape.add("", x, t, cls=cls, operator="add_types")
    p = tape.embedding("position_embeddings", tokens, e.hidden, e.positions, per_sample=False)
    x = tape.add("", x, p, cls=cls, operator="add_positions")
    x = tape.layer_norm("LayerNorm", x)
    tape.dropout("dropout", x, e.drop)
    return Layer(
        name=name, kind="embedding", cls=cls, body=tape.body(), output=float(tokens * e.hidden)
    )


def _block(e: Encoder, w: Words, tokens: int, core: Core) -> Body:
    """``BertLayer.forward``: attention, add and norm, MLP, add and norm."""
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=e.hidden)
    q, k, v = (tape.linear(f"{w.attn}.{p}", x, e.hidden, split="column") for p in w.qkv)
    h = attend(tape, w.attn, q, k, v, core, cls="SelfAttention")
    h = tape.linear(w.out, h, e.hidden, split="row")
    if w is BERT:  # DistilBERT drops out only inside attention and after the MLP
        h = tape.dropout("attention.output.dropout", h, e.drop)
    h = tape.add("", h, x, cls=w.cls, operator="attention_residual")
    x = tape.layer_norm(w.out_norm, h)
    h = mlp(tape, Names(first=w.first, second=w.second, act=w.act), x, e.inner, e.act)
    h = tape.dropout("output.dropout", h, e.drop)
    h = tape.add("", h, x, cls=w.cls, operator="mlp_residual")
    tape.layer_norm(w.second_norm, h)
    return tape.body()


def _heads(
    request: Request, r: Reader, e: Encoder, base: str, name: str, tokens: int
) -> list[Layer]:
    """What the class adds to the encoder; every one of them is dense and small but the LM head."""
    words = f"{name}embeddings.word_embeddings.weight"
    head, h = request.head, e.hidden
    if head == "Model":
        return [] if base == "distilbert" else [_pooler("pooler", tokens, h)]
    if head == "ForMaskedLM":
        return [_masked_lm(request, e, base, tokens, words)]
    if head == "ForTokenClassification":
        return [linear_head("classifier", tokens, h, count_labels(r), dropout=e.classifier_drop)]
    if head == "ForQuestionAnswering":
        return [linear_head("qa_outputs", tokens, h, count_labels(r))]
    if head == "ForPreTraining" and base == "bert":
        return [
            _pooler("bert.pooler", tokens, h),
            _masked_lm(request, e, base, tokens, words),
            linear_head("cls.seq_relationship", 1, h, 2),
        ]
    if head != "ForSequenceClassification":
        raise ScenarioError(unsupported(request))
    labels = count_labels(r)
    if base == "bert":
        score = linear_head("classifier", 1, h, labels, dropout=e.classifier_drop)
        return [_pooler("bert.pooler", tokens, h), score]
    dense, act = ("classifier.dense", "tanh") if base == "roberta" else ("pre_classifier", "relu")
    final = "classifier.out_proj" if base == "roberta" else "classifier"
    drop = e.classifier_drop if base == "roberta" else 0.0
    return [
        _dense(dense, tokens, h, act, drop),
        linear_head(final, 1, h, labels, dropout=e.classifier_drop),
    ]


def _pooler(name: str, tokens: int, hidden: int) -> Layer:
    """The first token through a tanh layer."""
    return _dense(f"{name}.dense", tokens, hidden, "tanh", 0.0)


def _dense(name: str, tokens: int, hidden: int, act: str, drop: float) -> Layer:
    tape = Tape()
    x = Tensor(name="first_token", rows=1, width=hidden, storage=tokens * hidden)
    x = tape.dropout("dropout", x, drop)
    x = tape.linear("", x, hidden)
    tape.activation("act", x, act)
    return Layer(name=name, kind="head", cls="Linear", body=tape.body(), output=float(hidden))


def _masked_lm(request: Request, e: Encoder, base: str, tokens: int, words: str) -> Layer:
    """Dense, gelu, norm, tied projection with its own bias; loss in the compute type."""
    dense, norm, decoder, bias = {
        "bert": ("transform.dense", "transform.LayerNorm", "decoder", "bias"),
        "roberta": ("dense", "layer_norm", "decoder", "bias"),
        "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector", ""),
    }[base]
    name = {"bert": "cls.predictions", "roberta": "lm_head", "distilbert": ""}[base]
    tape = Tape()
    tied_bias = None
    if bias:
        # The head owns the bias; the projection's is the same tensor when weights are tied.
        own = Parameter(name=bias, shape=(e.vocab,), shard=0)
        tape.append("", "LMHead", parameters=(own,))
        tied_bias = f"{name}.{bias}" if e.tied else None
    x = Tensor(name="hidden", rows=tokens, width=e.hidden)
    x = tape.linear(dense, x, e.hidden)
    x = tape.activation("act", x, "gelu" if base == "roberta" else e.act)
    x = tape.layer_norm(norm, x)
    logits = tape.linear(
        decoder, x, e.vocab, split="column", tied_to=words if e.tied else None,
        bias_tied_to=tied_bias,
    )  # fmt: skip
    logits_loss(tape, logits, upcast=False, shifted=False)
    cls = request.architecture.removesuffix("ForMaskedLM") + "LMHead"
    return Layer(name=name, kind="head", cls=cls, body=tape.body(), output=1)
