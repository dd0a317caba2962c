"""Scripts with ``deepspeed.moe``: their steps, memory and files are those of real DeepSpeed ranks.

The record (``validation/data/deepspeed_cpu/moe.json``) is of ``tests/real/moe_steps.py``, whose
model and loop an emulated worker runs as they are.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.rayapi.checkpoint import STANDS_FOR  # noqa: E402
from raysim.rayapi.shapes.prediction import Prediction  # noqa: E402
from tests.deepspeed_reference import recorded  # noqa: E402
from tests.real import moe_steps  # noqa: E402
from tests.real.real_ranks import said_by  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402
from tests.real.test_training_collectives import free_port  # noqa: E402
from tests.real.training_script_parts import fit, fit_value  # noqa: E402

CASES = recorded("moe.json")
NOT_TENSORS = 200
"""Bytes of a file's numbers of steps."""
UNKNOWN = "no token dropped"
"""How many tokens an expert gets there is not known."""


def loop(config: dict[str, Any]) -> None:
    engine, _ = moe_steps.trained(config["case"], "cuda")
    engine.save_checkpoint(config["folder"], tag="t")


def run(case: dict[str, Any], folder: Path, steps_taken: list[Prediction]) -> Prediction:
    result, _ = fit(loop, workers=case["ranks"], case=case, folder=str(folder))
    assert not isinstance(result, Exception), result
    return steps_taken[-1]


def counted(calls: Any) -> list[list[Any]]:
    return [[*call, len(list(some))] for call, some in groupby(calls)]


def ours(found: Prediction, case: dict[str, Any]) -> list[list[Any]]:
    """Operation, bytes, ranks, times in a row."""
    comms = found.outcome.comms
    program = found.outcome.slowest.program
    steady = program.ops[program.step_ends[-2] :]
    calls = (op.call for op in steady if op.call is not None)
    return counted([c.op, c.size_bytes, len(comms.members(c.group, 0))] for c in calls)


def theirs(case: dict[str, Any]) -> list[list[Any]]:
    """Likewise; what a rank exchanges with itself alone is no exchange."""
    every = ([op, size, ranks] for _, op, size, ranks, n in case["collectives"] for _ in range(n)
             if ranks > 1)  # fmt: skip
    return counted(every)


@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_collectives_memory_and_files_are_deepspeeds(
    case: dict[str, Any], tmp_path: Path, steps_taken: list[Prediction]
) -> None:
    found = run(case, tmp_path, steps_taken)
    mine, real = ours(found, case), theirs(case)
    if UNKNOWN in case["name"]:
        mine, real = ([[op, *rest] for op, _, *rest in calls] for calls in (mine, real))
    assert mine == real
    parameters = [p for layer in found.plan.model.layers for p in layer.body.parameters]
    held = case["held"]["parameters"]
    assert sum(p.numel for p in parameters if not p.expert) == held["dense"]
    assert sum(p.numel for p in parameters if p.expert) == held["experts"]
    program = found.outcome.slowest.program
    states = sum(e.delta_bytes for e in program.initial if e.category == "optimizer_state")
    weights = case["config"]["zero_optimization"]["stage"] == 0 and found.plan.precision == "fp32"
    assert states + 4 * sum(held.values()) * weights == case["held"]["optimizer"]
    files = {
        p.name: int(p.read_bytes().removeprefix(STANDS_FOR))
        for p in (tmp_path / "t").iterdir()
        if p.suffix == ".pt"
    }
    assert files == pytest.approx(case["files"], abs=NOT_TENSORS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["zero 2, ep 2 of 2"])
def test_the_record_is_what_two_ranks_do(name: str, tmp_path: Path, root: Path) -> None:
    pytest.importorskip("deepspeed")
    again([c for c in CASES if c["name"] == name], tmp_path, root)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_of_the_record_is_what_deepspeed_does(ranks: int, tmp_path: Path, root: Path) -> None:
    pytest.importorskip("deepspeed")
    again([c for c in CASES if c["ranks"] == ranks], tmp_path, root)


def again(cases: list[dict[str, Any]], folder: Path, root: Path) -> None:
    """Real ranks do what the record says."""
    source, target = folder / "cases.json", folder / "found.json"
    source.write_text(json.dumps(cases))
    launch = [sys.executable, "-m", "torch.distributed.run", "--master-port", str(free_port())]
    launch += ["--nproc-per-node", str(cases[0]["ranks"]), str(root / "tests/real/moe_steps.py")]
    more = {
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "PYTHONPATH": str(root),
    }
    said_by([*launch, str(source), str(target)], {**os.environ, **more})
    found = json.loads(target.read_text())
    for case in cases:
        assert found[case["name"]]["collectives"] == case["collectives"]
        assert found[case["name"]]["files"] == case["files"]
        assert all(held == case["held"] for held in found[case["name"]]["held"])


def refused(config: dict[str, Any]) -> None:
    """Steps of what DeepSpeed, or raysim, does not take."""
    import deepspeed

    net = moe_steps.model(config.get("moe", {"num_experts": 4, "ep_size": 2}))
    given: dict[str, Any] = {"model_parameters": net.parameters()}
    if config.get("plain"):
        given = {"optimizer": torch.optim.AdamW(net.parameters())}
    settings = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True},
                "zero_optimization": config["zero"],
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}  # fmt: skip
    deepspeed.initialize(model=net, config=settings, **given)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"zero": {"stage": 3}}, "Native DeepSpeed MoE is not supported with ZeRO Stage 3"),
        ({"zero": {"stage": 2, "contiguous_gradients": False}}, "Contiguous Gradients in ZeRO"),
        ({"zero": {"stage": 1, "reduce_scatter": False}}, "Reduce Scatter in ZeRO Stage 2 must"),
        ({"zero": {"stage": 1}, "plain": True}, "None of the param groups are marked as MoE"),
        ({"zero": {"stage": 1}, "moe": {"num_experts": 3, "ep_size": 3}}, "2 is not divisible by"),
        ({"zero": {"stage": 1}, "moe": {"num_experts": 3, "ep_size": 2}}, "should be divisible by"),
    ],
)
def test_what_is_refused_says_why(config: dict[str, Any], words: str) -> None:
    """DeepSpeed's words where it refuses, and the way out where it does not."""
    result, _ = fit(refused, **config)
    assert isinstance(result, Exception)
    assert words in str(result)


def piped(config: dict[str, Any]) -> None:
    """Two stages of two ranks; one mixture, on the first."""
    import deepspeed
    from deepspeed.moe.layer import MoE
    from deepspeed.pipe import LayerSpec, PipelineModule
    from torch import nn

    class Block(nn.Module):
        def __init__(self, mixed: bool) -> None:
            super().__init__()
            self.a, self.mixed = nn.Linear(64, 64), mixed
            mlp = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
            self.mlp = MoE(64, mlp, num_experts=4, ep_size=config["ep"]) if mixed else mlp

        def forward(self, x: Any) -> Any:
            y = self.mlp(self.a(x))
            return x + (y[0] if self.mixed else y)

    layers = [LayerSpec(Block, n == 0) for n in range(4)]
    net = PipelineModule(
        [nn.Linear(64, 64), *layers, nn.Linear(64, 100)], num_stages=2,
        loss_fn=lambda out, to: nn.functional.cross_entropy(out.flatten(0, 1), to.flatten()),
    )  # fmt: skip
    engine, *_ = deepspeed.initialize(
        model=net, model_parameters=list(net.parameters()),
        config={"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4,
                "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}},
    )  # fmt: skip
    batch = torch.randn(4, 16, 64), torch.zeros(4, 16, dtype=torch.long)
    for _ in range(2):
        engine.train_batch(iter([batch] * 4))


@pytest.mark.parametrize("ep", [1, 2])
def test_mixtures_in_a_pipeline_exchange_what_real_ranks_do(
    ep: int, steps_taken: list[Prediction]
) -> None:
    """Of DeepSpeed 0.19 on four CPU ranks; with a group of one a rank exchanges nothing."""
    result, _ = fit(piped, workers=4, ep=ep)
    assert not isinstance(result, Exception), result
    first, last = steps_taken[-1].outcome.timelines
    ops = first.program.ops[: first.program.step_ends[0]]
    calls = Counter((op.call.op, op.call.size_bytes) for op in ops if op.call is not None)
    experts_bytes = 4 * 4 * (64 * 256 + 256 + 256 * 64 + 64)
    if ep == 1:
        assert calls["all_reduce", experts_bytes] == calls["all_reduce", 34304] == 1
        assert not any(op == "all_to_all" for op, _ in calls)
    else:
        assert calls["all_to_all", 16384] == 16
        assert calls["all_reduce", 183296] == 1
    held = first.program.step_held[-1]["parameter"], last.program.step_held[-1]["parameter"]
    assert held == {1: (563712, 472976), 2: (448000, 323984)}[ep]


def asked(config: dict[str, Any]) -> Any:
    """What scripts ask of groups and models."""
    import deepspeed
    import torch.distributed as dist
    from deepspeed.moe.utils import configure_moe_param_groups, has_moe_layers
    from deepspeed.utils import groups

    net = moe_steps.model({"num_experts": 8, "ep_size": 2, **config["moe"]})
    engine, *_ = deepspeed.initialize(
        model=net, model_parameters=list(net.parameters()),
        config={"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adam"}},
    )  # fmt: skip
    ids = torch.zeros(4, 16, dtype=torch.long, device="cuda")
    name = "ep_size_2"
    local = net.h[1].mlp.deepspeed_moe.num_local_experts
    grouped = configure_moe_param_groups(list(net.parameters()))
    return {
        "found": has_moe_layers(net), "local": local, "engine": engine.num_experts,
        "ep": groups._get_expert_parallel_group_ranks(name),
        "edp": groups._get_expert_data_parallel_group_ranks(name),
        "place": groups._get_expert_parallel_rank(name), "rank": dist.get_rank(),
        "largest": groups._get_max_expert_size_name(),
        "groups": [(g["name"], g.get("moe", False), len(g["params"])) for g in grouped],
        "loss": tuple(engine(ids).shape),
    }  # fmt: skip


@pytest.mark.parametrize(
    "moe",
    [{}, {"k": 2, "use_residual": True}, {"k": 3}, {"use_tutel": True, "drop_tokens": False},
     {"enable_expert_tensor_parallelism": True, "noisy_gate_policy": "RSample", "use_rts": False},
     {"k": 2, "top2_2nd_expert_sampling": False, "noisy_gate_policy": "None"}],
)  # fmt: skip
def test_groups_and_models_answer_as_deepspeeds(moe: dict[str, Any]) -> None:
    """Four ranks: neighbours share eight experts, of two layers with two matrices and biases."""
    said = fit_value(asked, workers=4, moe=moe)
    assert said == {
        "found": (True, 8), "local": 4, "engine": [8], "ep": [0, 1], "edp": [0, 2], "place": 0,
        "rank": 0, "largest": "ep_size_2", "loss": (),
        "groups": [("dense-params", False, said["groups"][0][2]), ("ep_size_2", True, 16)],
    }  # fmt: skip


def test_deepspeeds_cifar_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_taken: list[Prediction]
) -> None:
    """Two mixtures, of 4 and 8 experts on two ranks each, and a checkpoint of 12 experts."""
    monkeypatch.chdir(tmp_path)
    words = ["--moe", "--ep-world-size", "2", "--num-experts", "4", "8", "--mlp-type", "residual"]
    words += ["--moe-param-group", "--stage", "2", "--dtype", "bf16", "--save", "saved"]
    lines, report = launched("deepspeed", "--num_gpus", "4", "moe_cifar.py", *words)
    assert lines[-1] == "20 steps, experts [4, 8]"
    assert report is not None
    of_experts = sorted(p.name for p in (tmp_path / "saved" / "global_step20").glob("layer_*"))
    expected = [(0, e) for e in range(4)] + [(1, e) for e in range(8)]
    assert of_experts == [f"layer_{i}_expert_{e}_mp_rank_00_model_states.pt" for i, e in expected]
    plan = steps_taken[-1].plan
    assert (plan.mesh.ep, plan.moe_groups) == (2, True)
    # Of fc3, 84 x 84 and a bias: 6 experts here.
    experts = [p.numel for layer in plan.model.layers for p in layer.body.parameters if p.expert]
    assert sum(experts) == 6 * (84 * 84 + 84)


def test_a_gpt_as_megatron_deepspeed_builds_it_holds_its_own_experts(
    steps_taken: list[Prediction],
) -> None:
    """Every other of four blocks has eight experts on four ranks; each sends what it gets."""
    words = ["--topk", "2", "--use-tutel"]
    lines, _ = launched("deepspeed", "--num_gpus", "8", "moe_gpt.py", *words)
    assert lines[-1] == f"4 steps, {2 * 2 * (2 * 512 * 2048 + 2048 + 512)} elements of experts here"
    program = steps_taken[-1].outcome.slowest.program
    steady = program.ops[program.step_ends[-2] :]
    sent = [op.call.size_bytes for op in steady if op.call and op.call.op == "all_to_all"]
    # Two micro-batches, two mixtures, there and back, forward and backward; k 2: every token twice.
    assert sent == [2 * 4 * 256 * 512 * 2] * (2 * 2 * 2 * 2)
