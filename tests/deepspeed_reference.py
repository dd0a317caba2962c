"""Recorded collectives of real DeepSpeed steps, and the same steps as raysim compiles them.

The records are in ``validation/data/deepspeed_cpu``; ``tests/real/deepspeed_steps.py`` makes them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.models.table import Body, Layer, Model, Module
from raysim.models.tape import Tape, Tensor
from raysim.training.settings.deepspeed import ZeroConfig
from raysim.training.settings.parallel import Mesh
from tests.training_parts import plan, programs

DATA = Path(__file__).resolve().parents[1] / "validation" / "data"
SCALAR_BYTES = 8
"""Nothing of a model is as small; norms and overflow flags are."""

Collective = tuple[str, int]
"""Operation, and bytes of the whole buffer."""


def recorded(file: str) -> list[dict[str, Any]]:
    """The cases of one file."""
    cases: list[dict[str, Any]] = json.loads((DATA / "deepspeed_cpu" / file).read_text())["cases"]
    return cases


def heard(case: dict[str, Any]) -> list[Collective]:
    """What the real step did, in the order of the record."""
    return [(op, size) for _, op, size, count in case["collectives"] for _ in range(count)]


def gpt(hidden: int, layers: int, vocab: int, seq: int) -> Model:
    """The table of ``deepspeed_steps.Gpt``: only modules that a forward calls, parents first."""
    x = Tensor(name="hidden", rows=seq, width=hidden)
    tape = Tape()
    tape.embedding("", seq, hidden, vocab)
    embedding = tape.body()
    tape = Tape()
    h = tape.layer_norm("ln1", x)
    tape.linear("qkv", h, 3 * hidden)
    tape.linear("proj", Tensor(name="attended", rows=seq, width=hidden), hidden)
    h = tape.layer_norm("ln2", x)
    h = tape.linear("fc", h, 4 * hidden)
    tape.linear("out", h, hidden)
    block = Body(modules=(Module(name="", cls="Block"), *tape.modules))
    tape = Tape()
    tape.layer_norm("", x)
    norm = tape.body()
    tape = Tape()
    tape.linear("", x, vocab, bias=False)
    numel = float(seq * hidden)
    first = Layer(name="emb", kind="embedding", cls="Embedding", body=embedding, output=numel)
    last = Layer(name="head", kind="head", cls="Linear", body=tape.body(), output=1.0)
    blocks = [
        replace(first, name=f"h.{i}", kind="block", cls="Block", body=block) for i in range(layers)
    ]
    final = replace(first, name="ln_f", kind="norm", cls="LayerNorm", body=norm)
    return Model(
        name="gpt",
        model_type="gpt",
        architecture="Gpt",
        layers=(first, *blocks, final, last),
        seq_len=seq,
        hidden_size=hidden,
        vocab_size=vocab,
    )


def compiled(case: dict[str, Any], ranks: int = 2, model: Model | None = None) -> list[Collective]:
    """What raysim's program does in the same step, in order."""
    config, shape = case["config"], dict(case["model"])
    checkpoint = shape.pop("checkpoint", False)
    p = plan(
        model or gpt(**shape),
        mesh=Mesh(dp=ranks),
        micro_batch=config["train_micro_batch_size_per_gpu"],
        gradient_accumulation_steps=config["gradient_accumulation_steps"],
        gradient_clipping=config["gradient_clipping"],
        precision="bf16" if "bf16" in config else "fp32",
    )
    p = replace(
        p,
        zero=ZeroConfig(**config["zero_optimization"]),
        grad_accum_dtype=config.get("data_types", {}).get("grad_accum_dtype"),
        torch_autocast="bf16" if "torch_autocast" in config else None,
        communication_data_type=config.get("communication_data_type"),
        activation_checkpointing="full" if checkpoint else "none",
    )
    program = programs(p, steps=3)[0]
    steady = program.ops[program.step_ends[-2] :]
    return [(op.call.op, op.call.size_bytes) for op in steady if op.call is not None]


def tensors_only(collectives: list[Collective]) -> list[Collective]:
    """Gradients and parameters, without norms and flags."""
    return [c for c in collectives if c[1] > SCALAR_BYTES]
