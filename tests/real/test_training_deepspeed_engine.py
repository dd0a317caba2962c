"""What scripts ask of DeepSpeed's engine beside steps: weights alone, whether a step was one."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.hardware import catalog  # noqa: E402
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


def states_away(config: dict[str, Any]) -> list[tuple[int, float]]:
    """What is allocated, and the seconds since before, after a step, offloading and reloading."""
    import deepspeed
    from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum

    net = Net(depth=64)
    engine, *_ = deepspeed.initialize(
        model=net, model_parameters=net.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True},
            "zero_optimization": {"stage": config["stage"], "reduce_bucket_size": 4096},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        },
    )  # fmt: skip
    seen = []

    def look(began: float) -> None:
        torch.cuda.synchronize()
        seen.append((torch.cuda.memory_allocated(), time.perf_counter() - began))

    engine.backward(engine(torch.randn(4, 1024, device="cuda").bfloat16()).mean())
    engine.step()
    look(time.perf_counter())
    began = time.perf_counter()
    engine.offload_states(include=[OffloadStateTypeEnum.optim_states])
    look(began)
    began = time.perf_counter()
    engine.offload_states()
    look(began)
    with pytest.raises(RuntimeError, match="at least two devices"):
        engine(torch.randn(4, 1024, device="cuda").bfloat16())
    began = time.perf_counter()
    engine.reload_states()
    look(began)
    engine(torch.randn(4, 1024, device="cuda").bfloat16())
    return seen


@pytest.mark.parametrize(("stage", "low"), [(2, 2.0), (3, (2 + 2) / 2)])
def test_offloaded_states_leave_the_gpu_over_pcie(stage: int, low: float) -> None:
    """Moments take 8 bytes of each element that one of two ranks steps, masters 4.

    Weights take 2, of ZeRO-2's whole; ZeRO-3's parts have gradients beside them. What stays are
    cuBLAS's workspaces, of 32 MiB on Hopper for each of two threads.
    """
    pcie_bytes_per_s = catalog.node("dgx-h100").gpu.pcie_bytes_per_s
    numel = 64 * (1024 * 1024 + 1024)
    after, some, nothing, again = fit_value(states_away, stage=stage)
    assert after[0] - some[0] == pytest.approx(8 * numel / 2, rel=1e-3)
    assert nothing[0] == pytest.approx(2 * 32 * 2**20, abs=20_000)
    assert again[0] == after[0]
    moved = (8 / 2, 4 / 2 + low, 12 / 2 + low)
    taken = [seconds for _, seconds in (some, nothing, again)]
    assert taken == pytest.approx([each * numel / pcie_bytes_per_s for each in moved], rel=0.02)


def compiled(config: dict[str, Any]) -> float:
    import deepspeed

    net = torch.nn.Sequential(*[torch.nn.GELU(approximate="tanh") for _ in range(9)], Net())
    engine, *_ = deepspeed.initialize(
        model=net, model_parameters=net.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 4096, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        },
    )  # fmt: skip
    if config["compile"]:
        engine.compile()
    assert engine.is_compiled is config["compile"]
    for _ in range(2):
        began = time.perf_counter()
        engine.backward(engine(torch.randn(4096, 1024, device="cuda").bfloat16()).mean())
        engine.step()
    return time.perf_counter() - began


def test_a_compiled_engines_elementwise_chains_are_one_kernel() -> None:
    assert fit_value(compiled, compile=True) < 0.9 * fit_value(compiled, compile=False)


CYCLE = {"cycle_min_lr": 0.1, "cycle_max_lr": 1.0, "cycle_first_step_size": 4}
SCHEDULES = [
    ("OneCycle", CYCLE),
    ("OneCycle", CYCLE | {"cycle_second_step_size": 7, "cycle_first_stair_count": 2,
                          "cycle_second_stair_count": 3}),
    ("OneCycle", CYCLE | {"decay_step_size": 3, "decay_lr_rate": 0.5, "decay_mom_rate": 0.01}),
    ("OneCycle", CYCLE | {"cycle_momentum": False}),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.2, "lr_range_test_step_size": 3}),
    ("LRRangeTest", {"lr_range_test_step_size": 3, "lr_range_test_staircase": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "said"), SCHEDULES)
def test_rates_and_momenta_are_deepspeeds(name: str, said: dict[str, Any]) -> None:
    real = pytest.importorskip("deepspeed.runtime.lr_schedules")
    from raysim.rayapi.deepspeed import schedules

    def seen(module: Any) -> list[Any]:
        adam = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
        schedule = getattr(module, name)(adam, **said)
        found = []
        for _ in range(20):
            (group,) = adam.param_groups
            found += [group["lr"], *group["betas"]]
            schedule.step()
        return found

    assert seen(schedules) == pytest.approx(seen(real))


def test_a_schedule_of_torchs_by_its_name() -> None:
    from raysim.rayapi.deepspeed.schedules import schedule_of

    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    made = schedule_of({"type": "StepLR", "params": {"step_size": 2}}, sgd)
    assert type(made) is torch.optim.lr_scheduler.StepLR
    with pytest.raises(AssertionError, match="does not recognize LR scheduler Own"):
        schedule_of({"type": "Own"}, sgd)


def piped(config: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Seconds of evaluations of some micro-batches, and of a step of as many."""
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    layers = [LayerSpec(torch.nn.Linear, 4096, 4096, bias=False) for _ in range(8)]
    net = PipelineModule(layers, num_stages=2, loss_fn=lambda y, t: (y - t).pow(2).mean())
    engine, *_ = deepspeed.initialize(
        model=net, model_parameters=net.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 4096, "gradient_accumulation_steps": 4,
            "optimizer": {"type": "SGD", "params": {"lr": 1e-4}},
        },
    )  # fmt: skip
    one = torch.randn(4096, 4096, device="cuda")
    batches, evaluated, trained = itertools.repeat((one, one)), [], []
    for count in config["counts"]:
        began = time.perf_counter()
        loss = engine.eval_batch(batches, num_micro_batches=count)
        evaluated.append(time.perf_counter() - began)
    for _ in range(2):
        began = time.perf_counter()
        engine.train_batch(batches)
        trained.append(time.perf_counter() - began)
    assert loss.shape == ()
    return evaluated, trained


def test_an_evaluation_by_a_pipeline_takes_its_forwards_and_one_stage_to_fill() -> None:
    """m + p - 1 forwards, behind the copy of a batch; a step's backwards are twice as long."""
    (one, four, eight), (_, step) = fit_value(piped, counts=(1, 4, 8))
    each = (eight - four) / 4
    assert four - one == pytest.approx(3 * each, rel=0.02)
    assert 2 * each < one < 3 * each
    assert step == pytest.approx(3 * (4 + 1) * each, rel=0.03)


def test_parameters_that_stage_2_leaves_on_the_gpu_are_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """DeepSpeed (zero/config.py: "Valid only with stage 3") says nothing and offloads nothing."""
    fit_value(loop, zero={"stage": 2, "offload_param": {"device": "cpu"}}, folder=str(tmp_path))
    said = capsys.readouterr().err
    assert "offload_param: DeepSpeed ignores it at stage 2; it needs stage 3" in said
