"""Packed tokens under ``flex_attention``, optimizers of a script's own, ``nvidia-smi``."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.nn.attention.flex_attention import and_masks, create_block_mask  # noqa: E402

from raysim.rayapi.shapes.block_masks import _asked, _kind  # noqa: E402
from raysim.rayapi.shapes.here import steps_here  # noqa: E402
from raysim.rayapi.standins import nvidia_smi  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402
from tests.real.training_script_parts import fit_value, one_layer_llama  # noqa: E402

LENGTH = 1024
DOCUMENTS = (torch.arange(LENGTH) % 300 == 0).cumsum(0)


def test_a_packed_model_takes_what_its_mask_leaves_and_its_optimizer_computes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines, report = launched("python", "packed.py")
    assert report.ok
    assert "cannot be followed" not in capsys.readouterr().err
    assert lines[0].startswith("GPU 0: H100")
    causal, documents, near, own = map(float, lines[1].split())
    assert causal > 5 * documents > 5 * near
    assert own - near > 9 * 128 * 2e-6  # matrices, products, the shortest kernel
    assert int(lines[2]) < 2e9  # a step's, though three evaluations with gradients came before


def _causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def _same(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return DOCUMENTS[q] == DOCUMENTS[kv]


@pytest.mark.parametrize("mask", [_causal, and_masks(_causal, _same)])
def test_the_share_of_blocks_is_that_of_a_real_block_mask(mask: Any) -> None:
    real = create_block_mask(mask, 1, 1, LENGTH, LENGTH, device="cpu")
    assert _asked(mask, 1, (LENGTH, LENGTH), (128, 128)) == pytest.approx(1 - real.sparsity() / 100)


def test_flex_attention_of_transformers_takes_what_its_mask_leaves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def loop(_: Any) -> Any:
        model = one_layer_llama("flex_attention")
        ids = torch.zeros(2, 256, dtype=torch.long, device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        here = steps_here()
        assert here is not None
        (role,) = here.shared.roles.values()
        assert role.model is not None
        return [o.attention for layer in role.model.layers for o in layer.body.operators]

    (found,) = filter(None, fit_value(loop, workers=1))
    assert (found.implementation, found.visited) == ("flex_attention", 0.75)  # 3 of 4 blocks
    assert "cannot be followed" not in capsys.readouterr().err


def _window(width: int) -> Any:
    return lambda b, h, q, kv: (q - kv).abs() < width


def test_masks_of_one_code_are_told_apart_by_what_they_hold() -> None:
    kinds = [_kind(and_masks(_causal, _window(width))) for width in (128, 128, 256)]
    assert kinds[0] == kinds[1] != kinds[2]


GPU = {"name": "H100-SXM-80GB", "mib": 81559, "watts": 700.0, "capability": "9.0", "count": 2}


def test_nvidia_smi_answers_as_a_program() -> None:
    asked = ["nvidia-smi", "--query-gpu=index,memory.total,fan.speed", "--format=csv,noheader"]
    with nvidia_smi.on_path(GPU):
        out = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert out == "0, 81559 MiB, [N/A]\n1, 81559 MiB, [N/A]\n"
    table = nvidia_smi.answer(GPU, []).splitlines()
    assert sum("H100-SXM-80GB" in line for line in table) == 2
    assert {len(line) for line in table} == {91}
