"""The ends of a model: language-model heads and their loss, classification heads.

A causal language model's loss is taken in fp32 (``transformers/loss/loss_utils.py``): logits in the
compute type, an fp32 copy that lives as long as the loss function, and the fp32 log-softmax that
autograd keeps. The logits stay as long as somebody holds the model's output object.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.models.table import Layer, Operator, Saved
from raysim.models.tape import Tape, Tensor


def logits_loss(tape: Tape, logits: Tensor, *, upcast: bool = True, shifted: bool = True) -> None:
    """Cross-entropy over the last dimension of ``logits``, mean over rows.

    ``upcast`` casts to fp32 first; ``shifted`` pads and copies the labels by one position.
    """
    n = logits.numel
    wide = 2 if upcast else 1
    softmax = Saved(
        name="loss.log_softmax",
        numel=n,
        dtype="fp32" if upcast else "compute",
        sharded=logits.sharded,
    )
    labels = Saved(name="labels", numel=logits.rows, dtype="int64")
    # The fp32 copy dies with the loss's forward; backward has the gradients of log-softmax's output
    # and input side by side.
    copy = replace(softmax, name="loss.logits", source=logits.name)
    output, back = (replace(softmax, name=f"loss.{of}") for of in ("grad", "grad_logits"))
    # cast (1 read, 2 written), log-softmax (read for maximum, sum and result, written); backward:
    # zeroed gradient of the likelihood, log-softmax (its gradient read for sum and result, its
    # output read, written), cast back (ATen/native/cuda/SoftMax.cu, cunn_SoftMax*)
    tape.run(
        "",
        "CrossEntropyLoss",
        kind="loss",
        operator="loss",
        inputs=(logits,),
        output=Tensor(name="loss.out", rows=1, width=1),
        moved=(3 * upcast + 4 * wide) * n,
        kernels=2 + upcast + 2 * shifted,
        moved_backward=(5 * wide + 3 * upcast) * n,
        indexed=(upcast * n, upcast * n),
        kernels_backward=3 + upcast,
        saves=(replace(logits.saved(), returned=True), softmax, labels),
        split="heads" if logits.sharded else "none",
        autocast="promotes" if upcast else "likelihood",
        scratch=((copy,) if upcast else (), (output, back)),
    )


def lm_head(
    tokens: float,
    hidden: int,
    vocab: int,
    *,
    name: str = "lm_head",
    bias: bool = False,
    tied_to: str | None = None,
    fused_loss: bool = False,
    softcap: bool = False,
    scaled: bool = False,
    divided: bool = False,
    wide: bool = False,
    upcast: bool = True,
) -> Layer:
    """Projection to the vocabulary and the shifted cross-entropy of ``...ForCausalLM``.

    ``scaled``: its input is multiplied by a number; ``divided``: the logits are divided by one;
    ``wide``: they are handed out in fp32, and not in the compute type.

    ``fused_loss`` takes the loss chunk by chunk (Liger's fused linear cross-entropy): forward
    already computes the input's gradient and keeps that instead of any logits.
    """
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    if scaled:
        x = tape.scale("", x, cls="Head")
    logits = tape.linear("", x, vocab, bias=bias, split="column", tied_to=tied_to)
    if fused_loss:
        tape.append("", "LigerFusedLinearCrossEntropyLoss", Operator(
            name="loss", kind="loss", moved=5 * logits.numel, moved_backward=0, output=1,
            split="heads", kernels=2, kernels_backward=0,
        ))  # fmt: skip
    else:
        if softcap:
            logits = _capped(tape, logits)
        if divided:
            logits = tape.scale("", logits, cls="Head")
        if wide:
            logits = replace(logits, dtype="fp32")
        logits_loss(tape, logits, upcast=upcast, shifted=upcast)
    return Layer(name=name, kind="head", cls="Linear", body=tape.body(), output=1)


def _capped(tape: Tape, logits: Tensor) -> Tensor:
    """Gemma's ``tanh(logits / cap) * cap``; keeps the tanh."""
    tanh = Tensor(name="tanh", rows=logits.rows, width=logits.width, sharded=logits.sharded)
    out = Tensor(name="capped", rows=logits.rows, width=logits.width, sharded=logits.sharded)
    return tape.run(
        "", "Softcap", operator="softcap", inputs=(logits,), output=out, moved=6 * logits.numel,
        kernels=3, moved_backward=7 * logits.numel, kernels_backward=3, saves=(tanh.saved(),),
    )  # fmt: skip


def linear_head(
    name: str,
    rows: float,
    hidden: int,
    outputs: int,
    *,
    bias: bool = True,
    dropout: float = 0.0,
    view_of: int = 0,
) -> Layer:
    """Dropout, one projection and a loss over its few outputs (classification, question answering).

    ``view_of``: the rows are a view of that many, all of which stay (a class token).
    """
    tape = Tape()
    x = Tensor(name="hidden", rows=rows, width=hidden, storage=view_of * hidden)
    x = tape.dropout("dropout", x, dropout)
    y = tape.linear("", x, outputs, bias=bias)
    logits_loss(tape, y, upcast=False, shifted=False)
    return Layer(name=name, kind="head", cls="Linear", body=tape.body(), output=1)
