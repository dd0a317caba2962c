"""What is asked of a family's builder, and the assembly of its layers into a ``Model``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from raysim.errors import Problem, ScenarioError
from raysim.models.config import Reader
from raysim.models.heads import linear_head, lm_head
from raysim.models.table import Body, Implementation, Layer, Model
from raysim.models.tape import Tape, Tensor

Head = Literal[
    "Model",
    "ForCausalLM",
    "ForMaskedLM",
    "ForPreTraining",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForConditionalGeneration",
    "ForImageClassification",
]
"""What follows the family's name in a class name; ``LMHeadModel`` is read as ``ForCausalLM``."""

Library = Literal["transformers", "megatron_core", "torchtitan", "internevo"]
"""Whose modules run: Hugging Face's eager ones, Megatron-core's on Transformer Engine,
torchtitan's, or InternEvo's."""
TRACED = (
    "any other family of transformers is traced where it is installed: pip install 'raysim[real]'; "
    "if its layers are those of a known family, say that family's model_type"
)
"""What is said where a family has no table of its own."""
OWN_CODE = (
    "its classes are its repository's (auto_map), whose code is never run; if its layers are those "
    "of a known family, say that family's model_type"
)
"""What is said where transformers has no such family either."""
_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of ``huggingface.build``, with the class name taken apart."""

    model_type: str
    architecture: str
    head: Head
    name: str
    seq_len: int | None = None
    target_len: int | None = None
    attention: Implementation = "sdpa"
    fused_loss: bool = False
    library: Library = "transformers"
    vocab_multiple: int = 1
    """Megatron pads the vocabulary to a multiple of this."""

    def implementation(self, supported: Sequence[Implementation], reader: Reader) -> Implementation:
        """The attention a family runs: sdpa falls back to eager, as ``from_pretrained`` does.

        flash_attention_2 where it is not supported is reported to ``reader``. transformers has one
        flag for flash attention 2 and 3; Triton's kernel stands in its place.
        """
        flash = self.attention.startswith("flash_attention_") or self.attention == "triton"
        if ("flash_attention_2" if flash else self.attention) in supported:
            return self.attention
        if flash:
            reader.problems.append(
                Problem(message=f"{self.architecture} does not support {self.attention}")
            )
        return "eager"

    def positions(
        self, reader: Reader, limit: int | None, *, hard: bool = False, key: str = ""
    ) -> int:
        """Tokens per sample: as asked, else the model's own limit.

        ``hard``: a learned position table, which a longer sequence would index out of range.
        """
        if self.seq_len is None:
            if limit is None:
                reader.problems.append(
                    Problem(message=f"{self.model_type}: the config has no length; give seq_len")
                )
                return 1
            return limit
        if self.seq_len < 1 or self.seq_len > 2**27:
            reader.problems.append(Problem(message=f"seq_len: {self.seq_len} is out of range"))
            return 1
        if hard and limit is not None and self.seq_len > limit:
            reader.refuse(key, f"seq_len {self.seq_len} exceeds the {limit} learned positions")
            return limit
        return self.seq_len


def count_labels(reader: Reader) -> int:
    """Classes of a classification head: entries of ``id2label``, else ``num_labels``, else 2."""
    value = reader.values.get("id2label")
    if isinstance(value, dict) and value:
        return len(value)
    if value is not None and not isinstance(value, dict):
        reader.refuse("id2label", "expected an object")
    return reader.integer("num_labels", "_num_labels", default=2)


def prefix(request: Request, base: str, *, answering: str = "") -> str:
    """``base.`` when a head wraps the base model, nothing when the base model is built alone.

    ``answering``: what a question-answering head calls it, where that differs.
    """
    if request.head == "Model":  # a multimodal base model keeps the inner name
        return f"{base.partition('.')[2]}." if "." in base else ""
    return f"{answering}." if answering and request.head == "ForQuestionAnswering" else f"{base}."


def decoder_heads(
    request: Request,
    reader: Reader,
    *,
    tokens: int,
    hidden: int,
    vocab: int,
    tied_to: str | None,
    lm_bias: bool = False,
    softcap: bool = False,
    divided: bool = False,
    lm_name: str = "lm_head",
    score_bias: bool = False,
    dropout: float = 0.0,
) -> list[Layer]:
    """The layers a decoder's class name asks for after the final norm."""
    if request.head == "Model":
        return []
    if request.head in ("ForCausalLM", "ForConditionalGeneration"):
        return [
            lm_head(
                tokens, hidden, vocab, name=lm_name, bias=lm_bias, tied_to=tied_to,
                fused_loss=request.fused_loss, softcap=softcap, divided=divided,
            )
        ]  # fmt: skip
    if request.head == "ForSequenceClassification":
        labels = count_labels(reader)
        return [linear_head("score", tokens, hidden, labels, bias=score_bias)]
    if request.head == "ForTokenClassification":
        labels = count_labels(reader)
        name = "score" if request.model_type not in TOKEN_CLASSIFIER else "classifier"
        return [linear_head(name, tokens, hidden, labels, dropout=dropout)]
    if request.head == "ForQuestionAnswering":
        return [linear_head("qa_outputs", tokens, hidden, 2)]
    raise ScenarioError(unsupported(request))


TOKEN_CLASSIFIER = ("gpt2", "gpt_neo", "gpt_neox", "bloom", "mpt", "falcon")
"""Families whose token classification head is called ``classifier``, not ``score``."""


def unsupported(request: Request) -> Problem:
    """The problem of a head that a family does not have, or that is not modelled."""
    return Problem(
        message=f"head {request.head} of {request.architecture} is not modelled",
        key="architectures",
    )


def norm_layer(
    name: str, cls: str, tokens: int, hidden: int, *, style: str = "", bias: bool = True
) -> Layer:
    """A final norm: LayerNorm, or RMSNorm of the given style."""
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    if style:
        tape.rms_norm("", x, cls=cls, style=style)
    else:
        tape.layer_norm("", x, cls=cls, bias=bias)
    return Layer(name=name, kind="norm", cls=cls, body=tape.body(), output=float(tokens * hidden))


def block_layer(name: str, cls: str, body: Body, output: float) -> Layer:
    """One transformer block."""
    return Layer(name=name, kind="block", cls=cls, body=body, output=output)


def config_dtype(reader: Reader) -> str | None:
    """``torch_dtype`` (``dtype`` since transformers 5) in raysim's words."""
    value = reader.values.get("dtype") or reader.values.get("torch_dtype")
    if value is None or value == "auto":
        return None
    short = _DTYPES.get(value.removeprefix("torch.")) if isinstance(value, str) else None
    if short is None:
        key = "dtype" if reader.values.get("dtype") else "torch_dtype"
        reader.refuse(key, f"expected one of {', '.join(_DTYPES)}")
    return short


def assemble(
    request: Request,
    reader: Reader,
    layers: Sequence[Layer],
    *,
    seq_len: int,
    hidden: int,
    vocab: int | None,
    divisible: Sequence[tuple[str, int]],
    sample_unit: Literal["tokens", "images", "samples"] = "tokens",
) -> Model:
    """The finished table; raises what the readers collected."""
    dtype = config_dtype(reader)
    reader.check()
    return Model(
        name=request.name,
        model_type=request.model_type,
        architecture=request.architecture,
        layers=tuple(layers),
        seq_len=seq_len,
        sample_unit=sample_unit,
        hidden_size=hidden,
        vocab_size=vocab,
        config_dtype=dtype,
        divisible=tuple(divisible),
    )
