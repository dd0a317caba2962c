"""What other releases of DeepSpeed than 0.19.8 read differently, for ``train.deepspeed_version``.

0.19.7 removed features and refuses their keys, before it they work: their effect is not modelled,
and said. 0.19.3 made 1.0 the default of ``gradient_clipping``; 0.17.1 made ``fp16`` and ``bf16``
strict. Before 0.6.0 ZeRO-3 gathered each parameter by itself, behind a synchronisation of the GPU.
Source: DeepSpeed's history of ``runtime/config.py``, ``runtime/zero`` and the files beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from raysim.errors import Problem
from raysim.scenario.deepspeed_keys import REMOVED, REMOVED_FROM, REMOVED_ZERO, matters
from raysim.scenario.deepspeed_schema import Bf16Block, Fp16Block
from raysim.scenario.documents import Document, KeyPath

Release = tuple[int, ...]

CLIPS_FROM: Release = (0, 19, 3)
STRICT_FROM: Release = (0, 17, 1)
COALESCES_FROM: Release = (0, 6, 0)
ONE_BIT = ("onebitadam", "zerooneadam", "onebitlamb")
"""Optimizers that 0.19.7 removed with them."""
LAST = "0.19.6"
"""Of the releases that have them."""
_REFUSED = {
    "amp": "Apex AMP is not modelled; fp16 or bf16 say the same to a prediction",
    "elasticity": "batch sizes that DeepSpeed works out are not modelled; set them directly",
}
"""Without these there is no prediction at all."""
_PRECISIONS: dict[str, type[BaseModel]] = {
    "fp16": Fp16Block,
    "bf16": Bf16Block,
    "bfloat16": Bf16Block,
}


def removed(document: Document, release: Release) -> Iterator[Problem]:
    """Keys that a release refuses whatever their value, and features that leave no prediction."""
    data = document.data
    zero = data.get("zero_optimization")
    inner = zero if isinstance(zero, dict) else {}
    if release < REMOVED_FROM:
        for key, why in _REFUSED.items():
            if key in data and matters((key,), data[key]):
                yield document.problem((key,), why, key=True)
        return
    found: list[KeyPath] = [(key,) for key in REMOVED if key in data]
    found += [("zero_optimization", key) for key in REMOVED_ZERO if key in inner]
    for path in found:
        what = REMOVED.get(str(path[-1])) or REMOVED_ZERO[str(path[-1])]
        message = f"DeepSpeed has removed {what} and refuses the key; delete it"
        message += f", or say deepspeed_version: {LAST} if that is what runs"
        yield document.problem(path, message, key=True)


def as_read(data: dict[str, Any], release: Release) -> dict[str, Any]:
    """The JSON with the defaults of a release, and without what it overlooks."""
    read = dict(data)
    if release < CLIPS_FROM:
        read.setdefault("gradient_clipping", 0.0)
    for key, block in _PRECISIONS.items() if release < STRICT_FROM else ():
        if isinstance(read.get(key), dict):
            known = block.model_fields
            read[key] = {name: value for name, value in read[key].items() if name in known}
    return read


def left_out(document: Document, release: Release) -> Iterator[Problem]:
    """Features of older releases that change the real run and not the prediction."""
    if release >= REMOVED_FROM:
        return
    for key in REMOVED:
        if key in document.data and matters((key,), document.data[key]):
            message = "not modelled; the prediction is without it"
            yield document.problem((key,), message, key=True)
    optimizer = document.data.get("optimizer")
    name = optimizer.get("type") if isinstance(optimizer, dict) else None
    if isinstance(name, str) and name.lower() in ONE_BIT:
        message = "not modelled: gradients are exchanged whole, as before its freeze_step"
        yield document.problem(("optimizer", "type"), message)
