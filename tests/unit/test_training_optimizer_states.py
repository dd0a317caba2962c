"""Optimizer states where they depend on the tensors, against the rules of the real packages."""

from __future__ import annotations

import pytest

from raysim.models.table import Model
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.states.optimizer import muon_numel, state_bytes_per_element
from raysim.validate.training_cases import _calls
from tests.training_parts import llama, plan, programs


def of(name: str, model: Model | None = None, **options: object) -> TrainingPlan:
    return plan(model or llama(), optimizer=Optimizer(type=name), **options)


def test_eight_bits_have_a_scale_per_256_elements_and_small_tensors_have_none() -> None:
    """bitsandbytes: 2 codes and 2/256 fp32 scales; norms of 256 elements keep 8 bytes."""
    sliced = state_bytes_per_element(of("adamw_8bit", stage=2))
    assert sliced == 2 + 8 / 256
    model = llama()
    norms = 256 * (2 * 4 + 1)
    whole = state_bytes_per_element(of("adamw_8bit", engine="ddp"))
    share = norms / model.num_trainable
    assert whole == pytest.approx((1 - share) * sliced + share * 8)


def test_adafactor_keeps_rows_and_columns_unless_it_sees_flat_slices() -> None:
    """A row and a column of sums for each matrix, every element of a norm."""
    model = llama(layers=1, hidden=64, vocab=96)
    shapes = [p.shape for _, p in model.parameters()]
    held = sum(4 * (sum(shape) if len(shape) > 1 else shape[0]) for shape in shapes)
    ours = state_bytes_per_element(of("Adafactor", model, engine="ddp")) * model.num_trainable
    assert ours == pytest.approx(held)
    assert state_bytes_per_element(of("Adafactor", model, stage=1)) == 4
    flat = FsdpSettings(version=1)
    assert state_bytes_per_element(of("Adafactor", model, engine="fsdp", fsdp=flat)) == 4


def test_muon_is_for_matrices_and_adam_for_the_rest() -> None:
    model = llama(layers=2, hidden=128, vocab=512)
    own = 2 * (4 * 128 * 128 + 3 * 128 * 512)
    p = of("Muon", model, stage=2)
    assert muon_numel(p) == own
    share = own / model.num_trainable
    assert state_bytes_per_element(p) == pytest.approx(2 * share + 8 * (1 - share))
    exact = of("Muon", model, stage=1, grad_accum_dtype="fp32")
    assert state_bytes_per_element(exact) == pytest.approx(4 * share + 8 * (1 - share))


def test_slices_of_matrices_are_gathered_for_muon_under_zero3_only() -> None:
    """Gradients, momenta, updates, momenta again: at least four times the matrices' bytes."""
    model = llama(layers=2, hidden=128, vocab=512)

    def extra(stage: int) -> int:
        totals = []
        for name in ("AdamW", "Muon"):
            (program,) = programs(of(name, model, stage=stage), steps=2)
            calls = _calls(program)
            totals.append(sum(n * k[1] for k, n in calls.items() if k[0] == "all_gather"))
        return totals[1] - totals[0]

    matrices = muon_numel(of("Muon", model)) * 2
    assert extra(2) == 0
    assert 4 * matrices <= extra(3) < 8 * matrices
