"""A plain stack of layers, as a small PipelineModule is written."""

from __future__ import annotations

import pytest

from raysim.models.sequential import build

MLP = [(128, 256), "relu", (256, 512), "relu", (512, 256), "relu", (256, 128), "relu", (128, 10)]


def test_every_module_is_a_pipeline_layer() -> None:
    model = build(MLP)
    assert [layer.cls for layer in model.layers] == ["Linear", "ReLU"] * 4 + ["Linear"]
    # sum over layers of inputs * outputs + outputs
    assert model.num_parameters == 330_122
    assert [name for name, _ in model.parameters()][:2] == ["0.weight", "0.bias"]
    assert model.sample_unit == "samples"


def test_flops_and_saved_tensors_grow_with_the_widths() -> None:
    model = build([(128, 256), "relu", (256, 10)])
    linear = 2 * (128 * 256 + 256 * 10)
    assert linear < model.flops < linear * 1.01
    saved = [layer.body.saved() for layer in model.layers]
    assert saved[0]["input"].numel == 128
    assert saved[1]["output"].numel == 256
    assert "input" not in saved[2]  # the storage of the ReLU's output
    assert saved[2]["log_softmax"].numel == 10
    assert model.layers[1].output == 256


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ([], "no layers"),
        (["relu"], "relu cannot be first"),
        ([(4, 8), (9, 2)], "takes 9 inputs but layer 0 gives 8"),
        (["gelu"], "unknown layer 'gelu'"),
    ],
)
def test_wrong_stacks(layers: list[tuple[int, int] | str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build(layers)
