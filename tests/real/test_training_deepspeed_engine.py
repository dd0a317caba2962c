"""What scripts ask of DeepSpeed's engine beside steps: weights alone, whether a step was one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.rayapi.checkpoint import STANDS_FOR  # noqa: E402
from tests.real.training_script_parts import Net, fit_value  # noqa: E402

NUMEL = 4 * (1024 * 1024 + 1024)


def loop(config: dict[str, Any]) -> Any:
    import deepspeed

    net = Net()
    engine, *_ = deepspeed.initialize(
        model=net, model_parameters=net.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
            "bf16": {"enabled": True}, "zero_optimization": config["zero"],
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        },
    )  # fmt: skip
    applied = []
    for _ in range(4):
        engine.backward(engine(torch.randn(4, 1024, device="cuda").bfloat16()).mean())
        engine.step()
        applied.append(engine.was_step_applied())
    saved = engine.save_16bit_model(config["folder"])
    engine.destroy()
    return applied, saved


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        ({"stage": 2}, True),
        ({"stage": 3}, False),
        ({"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}, True),
    ],
)
def test_weights_alone_are_two_bytes_each_if_they_are_gathered(
    tmp_path: Path, zero: dict[str, Any], expected: bool
) -> None:
    """As DeepSpeed: ZeRO-3 without the key writes nothing and returns False."""
    applied, saved = fit_value(loop, zero=zero, folder=str(tmp_path / "out"))
    assert applied == [False, True, False, True]
    assert saved is expected
    file = tmp_path / "out" / "pytorch_model.bin"
    assert file.exists() is expected
    if expected:
        size_bytes = int(file.read_bytes().removeprefix(STANDS_FOR))
        assert size_bytes == pytest.approx(2 * NUMEL, rel=1e-3)


def loaded(config: dict[str, Any]) -> tuple[Any, ...]:
    import deepspeed

    engine, _, loader, _ = deepspeed.initialize(
        model=Net(), training_data=torch.utils.data.TensorDataset(torch.arange(37)),
        config={
            "train_micro_batch_size_per_gpu": 4, **config["more"],
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        },
    )  # fmt: skip
    del engine
    return len(loader), [len(x) for (x,) in loader], loader.num_workers, loader.pin_memory


@pytest.mark.parametrize("drops", [None, False, True])
def test_a_loader_ends_with_the_batch_that_deepspeeds_does(*, drops: bool | None) -> None:
    dataloader = pytest.importorskip("deepspeed.runtime.dataloader")
    more = {} if drops is None else {"dataloader_drop_last": drops}
    found = fit_value(loaded, more=more)
    real = dataloader.DeepSpeedDataLoader(
        torch.utils.data.TensorDataset(torch.arange(37)), 4, pin_memory=False, local_rank=0,
        tput_timer=None, data_parallel_world_size=2, data_parallel_rank=0,
        dataloader_drop_last=bool(drops),
    )  # fmt: skip
    sizes = [len(x) for (x,) in real]
    assert found == (len(real), sizes, real.num_local_io_workers, True)
    assert (sizes[-1] == 4) is bool(drops)
