"""What DeepSpeed's Ulysses asks of a model: ``UlyssesSPAttentionHF`` and its data loader."""

from __future__ import annotations

from collections.abc import Iterator

from raysim.errors import Problem
from raysim.models.table import Model
from raysim.scenario.documents import Document


def unswapped(model: Model, ranks: int, document: Document) -> Iterator[Problem]:
    """Why heads and positions of this model cannot be swapped over so many ranks."""
    path = ("deepspeed",)
    if model.seq_len % ranks:
        message = f"sequence_parallel_size {ranks} does not divide seq_len {model.seq_len}"
        yield document.problem(path, message)
    if model.scans:
        message = (
            "sequence_parallel_size swaps attention's heads and positions; layers that keep a "
            "state would each start it anew on their part of a sequence"
        )
        yield document.problem(path, message)
    cores = (o.attention for layer in model.layers for o in layer.body.operators)
    core = next((core for core in cores if core is not None), None)
    if core is None:
        yield document.problem(path, "sequence_parallel_size needs a model with attention")
        return
    if core.implementation == "eager":
        message = "sequence_parallel_size needs model.attention sdpa or flash: eager has a 4D mask"
        yield document.problem(path, message)
    if core.heads % ranks:
        message = f"sequence_parallel_size {ranks} does not divide {core.heads} attention heads"
        yield document.problem(path, message)
    elif core.kv_heads % ranks and ranks % core.kv_heads:
        message = (
            f"sequence_parallel_size {ranks} and {core.kv_heads} heads of keys: "
            "one must divide the other"
        )
        yield document.problem(path, message)
