"""transformers' Trainer and accelerate, unmodified: against their launcher, and the same job said
as a scenario.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

import raysim  # noqa: E402
from raysim.errors import ScenarioError  # noqa: E402
from raysim.rayapi.launch.commands import read_command  # noqa: E402
from tests.real.test_launched_scripts import (  # noqa: E402
    OWN,
    PROGRAMS,
    cpus,
    launched,
    said_by_real_ranks,
    seen_in,
)
from tests.real.training_script_parts import LLAMA, fit, machines  # noqa: E402

AUTO = {
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "gradient_clipping": 1.0,
}  # fmt: skip
OPTIMIZER = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}
SCHEDULE = {
    "type": "WarmupDecayLR",
    "params": {"total_num_steps": "auto", "warmup_min_lr": "auto", "warmup_max_lr": "auto",
               "warmup_num_steps": "auto"},
}  # fmt: skip
FSDP = {
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_version": 2,
    "fsdp_cpu_ram_efficient_loading": True, "fsdp_offload_params": False,
    "fsdp_reshard_after_forward": True, "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
    "fsdp_activation_checkpointing": True,
}  # fmt: skip
FILES = {
    "zero2.json": AUTO | {"zero_optimization": {"stage": 2}, "optimizer": OPTIMIZER,
                          "scheduler": SCHEDULE},
    "zero3.json": AUTO | {"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
                                                "stage3_prefetch_bucket_size": "auto",
                                                "stage3_param_persistence_threshold": "auto"}},
    "fsdp1.json": {"version": 1, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"},
    "fsdp2.json": {"transformer_layer_cls_to_wrap": "LlamaDecoderLayer"},
    "config.json": LLAMA,
    "fsdp.yaml": {"distributed_type": "FSDP", "fsdp_config": FSDP, "mixed_precision": "bf16",
                  "compute_environment": "LOCAL_MACHINE", "num_machines": 1, "num_processes": 8,
                  "machine_rank": 0, "use_cpu": False},
    "zero.yaml": {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "num_machines": 1,
                  "num_processes": 8, "machine_rank": 0, "use_cpu": False,
                  "compute_environment": "LOCAL_MACHINE",
                  "deepspeed_config": {"zero_stage": 3, "gradient_accumulation_steps": 2,
                                       "gradient_clipping": 1.0, "zero3_init_flag": True,
                                       "offload_optimizer_device": "none",
                                       "offload_param_device": "none",
                                       "zero3_save_16bit_model": True}},
}  # fmt: skip
WAITING_BYTES = 2 * 2**20
COLLATING = 2e-3
"""A script's loader copies its batches, which a scenario without data does not."""
LOOP_S = 7e-3
"""What a library's loop, its logging and the waits for it add at most, over all micro-batches."""
ADAM = "{type: AdamW, fused: true, lr: 5.0e-5}"

SHARDED = (
    "mixed_precision: {param_dtype: bf16, reduce_dtype: bf16}, "
    "transformer_layer_cls: [LlamaDecoderLayer]}\nprecision: fp32\n"
    f"optimizer: {ADAM}\ngradient_clipping: 1.0"
)
AUTOCAST = f"ddp: {{autocast: bf16}}\noptimizer: {ADAM}\ngradient_clipping: 1.0"
ACCUMULATED = f"{AUTOCAST}\ngradient_accumulation_steps: 3"
ZERO3 = f"deepspeed: zero3.json\nprecision: bf16\noptimizer: {ADAM}\nactivation_checkpointing: full"


@pytest.fixture
def folder(in_tmp: Path) -> Path:
    """What a user has beside the script."""
    for name, content in FILES.items():
        (in_tmp / name).write_text(json.dumps(content))
    return in_tmp


def train(*flags: str, launcher: str = "torchrun --nproc-per-node 8") -> tuple[list[str], Any]:
    return launched(
        *launcher.split(), "hf_trainer.py", ".", "--output_dir", "out", "--max_steps", "4",
        "--per_device_train_batch_size", "4", "--report_to", "none", "--disable_tqdm", "true",
        "--logging_steps", "1", "--save_strategy", "no", *flags,
    )  # fmt: skip


def said(folder: Path, section: str) -> Any:
    """The summary of the same job as a scenario."""
    head = (
        "raysim: 1\ncluster: {nodes: 1, node: dgx-h100}\nmodel: {from: config.json}\njobs:\n"
        "- train:\n    seq_len: 128\n    micro_batch: 4\n    steps: 4\n    launcher: hf_trainer\n"
    )
    (folder / "scenario.yaml").write_text(head + "".join(f"    {s}\n" for s in section.split("\n")))
    return raysim.run(raysim.load(folder)).summary


def assert_equal(report: Any, expected: Any) -> None:
    """Step and memory of a program and of a scenario, which knows no loop and no logging.

    Nor gradients that wait for others to be added to them: a segment of small blocks here.
    """
    step_s = expected["step"]["seconds"]
    assert -COLLATING * step_s <= report.metrics["step_seconds"] - step_s < LOOP_S
    more_bytes = report.metrics["gpu_mem_peak_bytes"] - expected["memory"]["peak_bytes"]
    assert 0 <= more_bytes <= WAITING_BYTES


# ---- accelerate launch ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ["--multi_gpu", "--num_processes", "2", "--mixed_precision", "bf16"],
        ["--num_processes", "2", "--config_file", "fsdp.yaml"],
        ["--num_processes", "2", "--config_file", "zero.yaml", "--main_process_port", "29581"],
        ["--cpu", "--num_processes", "1"],
        ["--num_processes", "1", "--dynamo_backend", "inductor"],
    ],
    ids=" ".join,
)
def test_a_rank_finds_what_accelerate_gives_it(
    flags: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(folder))  # no default config of the user's
    real, ours = folder / "real", folder / "ours"
    real.mkdir(), ours.mkdir()
    words = ["-m", "accelerate.commands.launch", *flags]
    before = dict(os.environ, SEEN=str(real))
    expected: dict[Any, Any] = {}
    for _ in range(5):  # another test may hold the default port, then Accelerate takes any
        subprocess.run(
            [sys.executable, *words, str(PROGRAMS / "seen.py"), "--flag", "a b"],
            env=before, check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        expected = seen_in(real)
        if {e["environ"].get("MASTER_PORT") for e in expected.values()} <= {None, "29500", "29581"}:
            break
        time.sleep(5)
    monkeypatch.setenv("SEEN", str(ours))
    launched("accelerate", "launch", *flags, "seen.py", "--flag", "a b")
    found = seen_in(ours)
    assert expected.keys() == found.keys() != set()
    for rank, theirs in expected.items():
        mine = found[rank]
        assert mine["argv"] == theirs["argv"]
        changed = {k: v for k, v in theirs["environ"].items() if before.get(k) != v} | {"SEEN": ""}
        added = {k: v for k, v in mine["environ"].items() if os.environ.get(k) != v} | {"SEEN": ""}
        assert changed.keys() - added.keys() <= OWN | {"RAY_WORKER_NICENESS"}  # these tests' own
        added.pop("PATH")  # nvidia-smi is there
        assert {k: added[k] for k in added if k != "SEEN"} == {
            k: changed[k] for k in added if k != "SEEN"
        }


def test_accelerate_starts_as_many_as_are_asked_for_or_there_are(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("SEEN", str(folder))
    launched("accelerate", "launch", "seen.py")
    found = {name: each["environ"] for name, each in seen_in(folder).items() if "environ" in each}
    assert sorted(found) == [str(rank) for rank in range(8)]
    assert found["0"]["ACCELERATE_MIXED_PRECISION"] == "no"
    launched(
        "accelerate", "launch", "--multi_gpu", "--num_machines", "2", "--num_processes", "4",
        "seen.py", spec=machines(2),
    )  # fmt: skip
    found = {name: each["environ"] for name, each in seen_in(folder).items() if "environ" in each}
    assert [found[str(rank)]["GROUP_RANK"] for rank in range(4)] == ["0", "0", "1", "1"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("accelerate launch --nope train.py", "unrecognized arguments: --nope"),
        ("accelerate launch --config_file absent.yaml train.py", "does not exist"),
        ("accelerate launch --multi_gpu --num_processes 1 train.py", "at least 2 processes"),
        ("accelerate launch --use_megatron_lm --num_processes 2 train.py", "not emulated"),
        ("accelerate config", "accelerate config is not emulated"),
    ],
)
def test_what_accelerate_would_refuse_is_refused(line: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_command(line.split())


# ---- the same job as a scenario ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "section"),
    [
        ("--bf16", AUTOCAST),
        ("--bf16 --gradient_accumulation_steps 3",
         ACCUMULATED),
        ("", f"precision: fp32\noptimizer: {ADAM}\ngradient_clipping: 1.0"),
        ("--bf16 --torch_compile",
         f"{AUTOCAST}\ntorch_compile: true"),
        ("--bf16 --deepspeed zero2.json --gradient_accumulation_steps 2",
         "deepspeed: zero2.json\nprecision: bf16\ngradient_accumulation_steps: 2"),
        ("--bf16 --deepspeed zero3.json --activation_checkpointing", ZERO3),
        ("--bf16 --fsdp --fsdp_config fsdp2.json",
         "fsdp: {version: 2, wrap_ends: true, " + SHARDED),
        ("--bf16 --fsdp full_shard --fsdp_config fsdp1.json",
         "fsdp: {version: 1, backward_prefetch: NO_PREFETCH, use_orig_params: true, " + SHARDED),
    ],
    ids=["ddp", "ddp-accumulated", "ddp-fp32", "ddp-compiled", "zero2", "zero3", "fsdp2", "fsdp1"],
)  # fmt: skip
def test_a_step_of_the_trainer_is_the_scenario_s(flags: str, section: str, folder: Path) -> None:
    _, report = train(*flags.split())
    expected = said(folder, section)
    assert_equal(report, expected)


@pytest.mark.parametrize("door", ["from_config", "from_pretrained"])
def test_flash_attention_costs_its_own_without_its_package(
    door: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTENTION", "flash_attention_2")
    monkeypatch.setenv("DOOR", door)
    _, report = train("--bf16", "--per_device_train_batch_size", "128")
    said(folder, AUTOCAST)
    many = raysim.load(folder).with_({"train.micro_batch": 128})
    scenario = raysim.run(many).summary
    flash = raysim.run(many.with_({"model.attention": "flash_attention_2"})).summary
    assert flash["step"]["seconds"] != scenario["step"]["seconds"]
    assert_equal(report, flash)


@pytest.mark.parametrize(
    ("file", "section", "kind"),
    [
        ("fsdp.yaml", f"fsdp: fsdp.yaml\noptimizer: {ADAM}\ngradient_clipping: 1.0", "FSDP"),
        ("zero.yaml", f"deepspeed: zero.yaml\noptimizer: {ADAM}", "DEEPSPEED"),
    ],
)
def test_a_step_under_accelerate_s_file_is_the_scenario_s(
    file: str, section: str, kind: str, folder: Path
) -> None:
    lines, report = launched(
        "accelerate", "launch", "--config_file", file, "hf_accelerate.py", ".", "saved"
    )
    assert lines == [f"{kind} cuda:0 16"]
    expected = said(folder, section)
    assert_equal(report, expected)


# ---- what a run leaves ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "kind", "files"),
    [
        ("--bf16", "DistributedDataParallel",
         {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_7.pth"}),
        ("--bf16 --deepspeed zero3.json", "DeepSpeedEngine",
         {"latest", "global_step2", "rng_state_7.pth"}),  # weights are not gathered
        ("--bf16 --fsdp --fsdp_config fsdp2.json", "FSDPLlamaForCausalLM",
         {"model.safetensors", "pytorch_model_fsdp.bin", "optimizer.bin", "scheduler.pt"}),
        ("--bf16 --fsdp full_shard --fsdp_config fsdp1.json", "FullyShardedDataParallel",
         {"model.safetensors", "pytorch_model_fsdp.bin", "optimizer.bin", "scheduler.pt"}),
    ],
    ids=["ddp", "zero3", "fsdp2", "fsdp1"],
)  # fmt: skip
def test_checkpoints_are_paid_for_and_resumed_from(
    flags: str, kind: str, files: set[str], folder: Path
) -> None:
    saving = [*flags.split(), "--save_strategy", "steps", "--save_steps", "2"]
    (*_, line), report = train(*saving, "--eval_strategy", "steps", "--eval_steps", "2")
    assert line.startswith(f"4 {kind} 5e-05 3.75e-05 ")
    assert files <= {path.name for path in (folder / "out" / "checkpoint-2").iterdir()}
    assert report.metrics["checkpoint_stall_s"] > 0
    (*_, line), _ = train(*saving, "--resume_from_checkpoint", "out/checkpoint-2")
    assert line.startswith(f"4 {kind} ")
    assert line.endswith("2.5e-05 1.25e-05")


def test_a_model_that_does_not_fit_is_a_result(folder: Path) -> None:
    (folder / "config.json").write_text(
        json.dumps(LLAMA | {"hidden_size": 16384, "intermediate_size": 65536})
    )
    out = io.StringIO()
    from raysim.cli import main

    with contextlib.redirect_stdout(out):
        code = main([
            "run", "-q", "torchrun", "--nproc-per-node", "2", str(PROGRAMS / "hf_trainer.py"), ".",
            "--output_dir", "out", "--max_steps", "2", "--report_to", "none", "--bf16",
        ])  # fmt: skip
    assert code == 1
    assert "does not fit: the step needs" in out.getvalue()


def test_each_rank_has_accelerate_s_state_and_another_run_a_new_one(folder: Path) -> None:
    script = folder / "states.py"
    script.write_text(
        "import os\n"
        "from accelerate import Accelerator\n"
        "from transformers.utils import is_torch_cuda_available\n"
        "accelerator = Accelerator(mixed_precision='bf16')\n"
        "assert accelerator.process_index == int(os.environ['RANK'])\n"
        "assert is_torch_cuda_available()\n"
        "print(accelerator.process_index, accelerator.num_processes, accelerator.device)\n"
    )
    for count in (2, 4):
        lines, _ = launched("torchrun", "--nproc-per-node", str(count), str(script))
        assert sorted(lines) == [f"{i} {count} cuda:{i}" for i in range(count)]
    assert not accelerate.state.PartialState._shared_state
    assert not transformers.utils.is_torch_cuda_available()


def test_accelerate_on_cpus_ends_with_the_numbers_of_real_ranks() -> None:
    words = ["--nproc-per-node", "2"]
    expected = said_by_real_ranks(*words, str(PROGRAMS / "hf_cpu.py"))
    lines, report = launched("torchrun", *words, "hf_cpu.py", spec=cpus())
    assert lines == expected != []
    assert report.metrics["step_seconds"] > 0


# ---- inside Ray Train ----------------------------------------------------------------------------


def test_the_trainer_in_ray_train_reports_its_checkpoints(folder: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
        from torch.utils.data import Dataset
        from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

        class Tokens(Dataset[Any]):
            def __len__(self) -> int:
                return 512

            def __getitem__(self, _index: int) -> dict[str, Any]:
                ids = torch.randint(0, 512, (128,))
                return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(config["folder"]), dtype=torch.float32
        )
        args = TrainingArguments(
            output_dir=config["out"], max_steps=4, bf16=True, per_device_train_batch_size=4,
            report_to="none", save_steps=2, logging_steps=1, disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model=model, args=args, train_dataset=Tokens())
        trainer.add_callback(RayTrainReportCallback())
        prepare_trainer(trainer).train()

    result, report = fit(loop, workers=8, folder=str(folder), out=str(folder / "out"))
    assert result.metrics["step"] == 4
    with result.checkpoint.as_directory() as kept:
        assert (Path(kept) / "checkpoint" / "model.safetensors").is_file()
    expected = said(folder, AUTOCAST)
    assert_equal(report, expected)


def test_accelerate_in_ray_train_uses_its_group(folder: Path) -> None:
    def loop(config: dict[str, Any]) -> str:
        from accelerate import Accelerator

        accelerator = Accelerator()
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters())
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.backward(model(torch.randn(8, 64, device=accelerator.device)).sum())
        optimizer.step()
        return f"{accelerator.num_processes} {accelerator.device} {type(model).__name__}"

    result, _ = fit(loop, workers=4)
    assert result.return_value == "4 cuda:0 DistributedDataParallel"


def test_ray_data_s_batches_are_the_trainer_s(folder: Path) -> None:
    def loop(config: dict[str, Any]) -> int:
        import ray.data
        from ray.train.huggingface.transformers import prepare_trainer
        from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

        def tokens(batch: dict[str, Any]) -> dict[str, Any]:
            ids = torch.tensor(batch["id"])[:, None].expand(-1, 128) % 512
            return {"input_ids": ids, "labels": ids}

        shard = ray.data.range(64).iterator()
        batches = shard.iter_torch_batches(batch_size=4, collate_fn=tokens)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config["folder"]))
        args = TrainingArguments(
            output_dir=config["out"], max_steps=3, report_to="none", save_strategy="no",
        )  # fmt: skip
        trainer = prepare_trainer(Trainer(model=model, args=args, train_dataset=batches))
        trainer.train()
        return int(trainer.state.global_step)

    result, _ = fit(loop, workers=2, folder=str(folder), out=str(folder / "out"))
    assert not isinstance(result, Exception), result
    assert result.return_value == 3


# ---- DeepSpeed's schedules -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("WarmupLR", {"warmup_max_lr": 0.01, "warmup_num_steps": 7}),
        ("WarmupLR", {"warmup_min_lr": 0.001, "warmup_num_steps": 4, "warmup_type": "linear"}),
        ("WarmupDecayLR", {"total_num_steps": 20, "warmup_num_steps": 5}),
        ("WarmupCosineLR", {"total_num_steps": 20, "warmup_num_steps": 5, "warmup_min_ratio": 0.1}),
    ],
)
def test_schedules_are_deepspeed_s(kind: str, options: dict[str, Any]) -> None:
    theirs = pytest.importorskip("deepspeed.runtime.lr_schedules")
    from raysim.rayapi.deepspeed import schedules

    def rates(module: Any) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.02)
        schedule = getattr(module, kind)(optimizer, **options)
        found = [optimizer.param_groups[0]["lr"]]
        for _ in range(25):
            schedule.step()
            found += schedule.get_last_lr()
        return found

    assert rates(schedules) == pytest.approx(rates(theirs), rel=1e-9, abs=1e-15)
