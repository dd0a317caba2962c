"""llm-foundry's MPT, in the shape of the GPT-2 that stands for it.

It has no biases (``no_bias``); its loss is flash-attn's, which reads the 16-bit logits once and
writes their gradient in backward; and it works out its metrics in every micro-batch.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.models.huggingface import build
from raysim.models.table import Body, Model, Module, Operator

METRICS = 2
"""Cross-entropy and perplexity of every micro-batch (``DEFAULT_CAUSAL_LM_TRAIN_METRICS``), both of
which Composer works out anew from the logits, with torch's cross-entropy under autocast."""
METRIC_PASSES = 3 + 8
"""16-bit passes over the logits of one: a cast to fp32, and the log-softmax."""
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}


def mpt(hidden: int, heads: int, layers: int, *, seq_len: int, vocab: int) -> Model:
    """The model as its throughput tables ran it (``no_bias``, ``attn_impl: triton``)."""
    config = {
        **GPT2, "n_embd": hidden, "n_head": heads, "n_layer": layers, "n_positions": seq_len,
        "vocab_size": vocab,
        "activation_function": "gelu",  # MPT's own; gelu_new would run eight kernels
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }  # fmt: skip
    return build(config, seq_len=seq_len, attention="triton").with_bodies(_body)


def _body(body: Body) -> Body:
    return replace(body, modules=tuple(_module(m) for m in body.modules))


def _module(module: Module) -> Module:
    if module.cls not in {"Conv1D", "Linear", "CrossEntropyLoss"}:
        return module
    parameters = tuple(p for p in module.parameters if not p.name.endswith("bias"))
    biased = len(parameters) < len(module.parameters)
    operators = tuple(_operator(o, biased=biased) for o in module.operators)
    return replace(module, operators=operators, parameters=parameters)


def _operator(o: Operator, *, biased: bool) -> Operator:
    if o.kind == "loss":
        logits = replace(o.saves[0], returned=False)
        n = logits.numel
        return replace(
            o, moved=n + METRICS * METRIC_PASSES * n, moved_backward=2 * n, indexed=METRICS * n,
            indexed_backward=0.0, kernels=1 + 3 * METRICS, kernels_backward=1,
            saves=(logits, o.saves[-1]), scratch=(), scratch_backward=(logits,),
        )  # fmt: skip
    if biased and o.moved_backward is not None and o.kernels_backward is not None:
        return replace(
            o, moved_backward=o.moved_backward - o.output, kernels_backward=o.kernels_backward - 1
        )
    return o
