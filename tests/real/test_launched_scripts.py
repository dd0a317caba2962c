"""Training scripts that know no Ray, under launchers: against the real ones, and the tower."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.hardware import catalog  # noqa: E402
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup  # noqa: E402
from raysim.kernel.simulation import Simulation  # noqa: E402
from raysim.rayapi.launch.commands import read_command  # noqa: E402
from raysim.rayapi.launch.running import run_launched  # noqa: E402
from raysim.rayapi.unsupported import NotEmulatedError  # noqa: E402
from raysim.raycore.cluster import Cluster  # noqa: E402
from raysim.raylibs.report import LibraryReport  # noqa: E402
from raysim.training.settings.parallel import Mesh  # noqa: E402
from tests.real.real_ranks import said_by  # noqa: E402
from tests.real.training_script_parts import machines, net_plan, played, traced  # noqa: E402

PROGRAMS = Path(__file__).parents[1] / "programs" / "launched"
FREE = {"MASTER_PORT", "TORCHELASTIC_RUN_ID"}
"""Drawn anew by every launch that meets on its own machine."""
OWN = {"TORCHELASTIC_ERROR_FILE", "PYTORCH_NVML_BASED_CUDA_CHECK", "DS_ACCELERATOR"}
"""Files of the real launcher's own, and what the real DeepSpeed sets when it is imported."""


def launched(*words: str, spec: ClusterSpec | None = None) -> tuple[list[str], LibraryReport]:
    """What the ranks print, and what is reported; the script is the last word with ``.py``."""
    at = next(i for i, word in enumerate(words) if word.endswith(".py"))
    command = read_command([*words[:at], str(PROGRAMS / words[at]), *words[at + 1 :]])
    cluster = Cluster(Simulation(seed=0), spec or machines())
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run_launched(command, cluster=cluster)
    (report,) = cluster.env.reports
    return out.getvalue().splitlines(), report


def cpus() -> ClusterSpec:
    group = NodeGroup(name="cpus", node=catalog.node("cpu-16"), count=1, head=True)
    return ClusterSpec(groups=(group,), fabric=FabricSpec(kind="star"))


# ---- what a rank finds ---------------------------------------------------------------------------


def test_a_process_sees_the_gpus_that_its_environment_names() -> None:
    """As CUDA reads it: those up to the first that is not there."""
    assert launched("python", "devices.py", spec=machines(8))[0] == ["8 1 2 1 0 "]
    found, _ = launched("deepspeed", "--include", "worker-0:1,3", "devices.py", spec=machines(8))
    assert found == ["2 1 2 1 0 "] * 2


def seen_in(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("deepspeed.launcher.runner", ["--num_gpus", "2"]),
        (
            "deepspeed.launcher.runner",
            ["--num_gpus", "2", "--no_local_rank", "--master_port=29577"],
        ),
        ("torch.distributed.run", ["--nproc-per-node", "2"]),
        ("torch.distributed.run", ["--nproc_per_node=2", "--master_port", "29578", "--nnodes=1"]),
        ("torch.distributed.run", ["--standalone", "--nproc-per-node", "1"]),
        ("torch.distributed.launch", ["--nproc-per-node", "2"]),
    ],
)
def test_a_rank_finds_what_the_real_launcher_gives_it(
    module: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    real, ours = tmp_path / "real", tmp_path / "ours"
    real.mkdir(), ours.mkdir()
    command = [sys.executable, "-m", module, *words, str(PROGRAMS / "seen.py"), "--flag", "a b"]
    before = dict(os.environ, SEEN=str(real), DS_ACCELERATOR="cpu")
    said_by(command, before)
    monkeypatch.setenv("SEEN", str(ours))
    launched("python", "-m", module, *words, "seen.py", "--flag", "a b")
    expected, found = seen_in(real), seen_in(ours)
    assert expected.keys() == found.keys() != set()
    for rank, theirs in expected.items():
        mine = found[rank]
        assert mine["argv"] == theirs["argv"]
        assert (mine["name"], mine["file"]) == (theirs["name"], theirs["file"])
        changed = {k: v for k, v in theirs["environ"].items() if before.get(k) != v} | {"SEEN": ""}
        added = {k: v for k, v in mine["environ"].items() if os.environ.get(k) != v} | {"SEEN": ""}
        added.pop("PATH")  # nvidia-smi is there
        free = FREE if "29578" not in words else set()
        for name in changed.keys() - OWN:
            assert name in added, name
            assert name in free or added[name] == changed[name], name
        assert added.keys() <= changed.keys()


def test_ranks_of_two_nodes_count_on_and_meet_at_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN", str(tmp_path))
    launched("deepspeed", "--num_gpus", "2", "seen.py", spec=machines(2))
    found = {rank: each["environ"] for rank, each in seen_in(tmp_path).items()}
    names = ("LOCAL_RANK", "CROSS_RANK", "CUDA_VISIBLE_DEVICES")
    assert {rank: tuple(each[name] for name in names) for rank, each in found.items()} == {
        "0": ("0", "0", "0,1"), "1": ("1", "0", "0,1"),
        "2": ("0", "1", "0,1"), "3": ("1", "1", "0,1"),
    }  # fmt: skip
    assert {e["WORLD_SIZE"] for e in found.values()} == {"4"}
    assert (
        {e["MASTER_ADDR"] for e in found.values()} == {found["0"]["MASTER_ADDR"]} != {"127.0.0.1"}
    )


# ---- scripts -------------------------------------------------------------------------------------


def said_by_real_ranks(*words: str) -> list[str]:
    """What they print."""
    return said_by([sys.executable, "-m", "torch.distributed.run", *words])


def test_ranks_on_cpus_end_with_the_numbers_of_the_real_ones() -> None:
    expected = said_by_real_ranks("--nproc-per-node", "2", str(PROGRAMS / "linear_ddp.py"))
    lines, report = launched("torchrun", "--nproc-per-node", "2", "linear_ddp.py", spec=cpus())
    assert sorted(lines) == sorted(expected)
    assert report.ok
    assert report.metrics["step_seconds"] > 0


def test_ranks_on_gpus_print_all_and_have_modules_of_their_own() -> None:
    lines, report = launched("torchrun", "--nproc-per-node", "gpu", "linear_ddp.py")
    assert sorted(lines) == [f"rank {i} of 8: loss nan nan" for i in range(8)]
    (row,) = report.tables[0].rows
    assert row[:2] == ("Sequential, DDP, 8 GPUs", 2)  # 512 samples, 8 ranks, batches of 32
    assert report.text.startswith("2 steps on 8 ranks of 1 node")
    assert not any(table.title == "Attempts" for table in report.tables)


def test_deepspeed_reads_its_arguments_its_json_and_the_script_s_dataset(tmp_path: Path) -> None:
    settings = {
        "train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": True},
        "zero_optimization": {"stage": 2}, "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
    }  # fmt: skip
    (tmp_path / "ds.json").write_text(json.dumps(settings))
    lines, report = launched(
        "deepspeed", "--include", "localhost:4,5", "residual_zero.py", "--deepspeed",
        "--deepspeed_config", str(tmp_path / "ds.json"), "--save", str(tmp_path / "saved"),
    )  # fmt: skip
    assert lines == ["64 steps, args.local_rank=0, args.deepspeed=True"]
    (row,) = report.tables[0].rows
    assert row[:2] == ("Net, ZeRO-2, 2 GPUs", 64)
    names = {path.name for path in (tmp_path / "saved" / "global_step64").iterdir()}
    assert "zero_pp_rank_1_mp_rank_00_optim_states.pt" in names
    assert report.metrics["checkpoint_stall_s"] > 0


def test_a_step_is_the_tower_s_of_the_same_model_and_plan(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "from tests.real.training_script_parts import Net\n"
        "dist.init_process_group('nccl')\n"
        "model = DistributedDataParallel(Net().cuda())\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(3):\n"
        "    model(torch.randn(64, 1024, device='cuda')).pow(2).mean().backward()\n"
        "    optimizer.step()\n"
    )
    _, report = launched("torchrun", "--nproc-per-node", "2", str(script))
    expected = played(traced(), net_plan(mesh=Mesh(dp=2)), 64 * 1024 * 4)
    assert report.metrics["step_seconds"] == pytest.approx(expected.steady_step_ns / 1e9, rel=1e-6)
    assert report.metrics["gpu_mem_peak_bytes"] == expected.fullest.peak_bytes


def test_zero_on_two_nodes_is_slower_than_on_one(tmp_path: Path) -> None:
    settings = {"train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": True},
                "zero_optimization": {"stage": 3}}  # fmt: skip
    (tmp_path / "ds.json").write_text(json.dumps(settings))
    words = ["residual_zero.py", "--deepspeed_config", str(tmp_path / "ds.json")]
    _, one = launched("deepspeed", *words)
    _, two = launched("deepspeed", "--num_gpus", "4", *words, spec=machines(2))
    assert one.tables[0].rows[0][:2] == two.tables[0].rows[0][:2] == ("Net, ZeRO-3, 8 GPUs", 16)
    assert two.metrics["step_seconds"] > one.metrics["step_seconds"]


def test_fsdp2_shards_blocks_and_a_file_of_rank_0_takes_time(tmp_path: Path) -> None:
    lines, report = launched("torchrun", "--nproc-per-node", "4", "blocks_fsdp2.py", str(tmp_path))
    assert lines == ["loss nan"]
    assert report.tables[0].rows[0][:2] == ("Sequential, FSDP2, 4 GPUs", 5)
    size_bytes = 4 * 6 * (2 * 1024 + 1024 * 4096 * 2 + 4096 + 1024)
    disk, _ = catalog.node("dgx-h100").disks[0]
    took_s = report.metrics["checkpoint_stall_s"]
    assert took_s == pytest.approx(size_bytes / disk.write_bytes_per_s, rel=0.05)


def test_a_script_that_spawns_its_ranks() -> None:
    lines, report = launched("python", "spawned_ddp.py")
    assert lines[:2] == ["__mp_main__ rank 0 of 8, [0]", "__mp_main__ rank 1 of 8, [1]"]
    assert lines[-1] == "__main__ ends, []"  # arguments were copies
    assert report.tables[0].rows[0][:2] == ("Linear, DDP, 8 GPUs", 3)
    assert report.text.startswith("3 steps on 8 ranks")


def test_pretrained_weights_are_a_config_s_shapes_and_are_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(num_hidden_layers=2, hidden_size=256, num_attention_heads=4)
    config.save_pretrained(tmp_path)  # and no weights
    script = tmp_path / "finetune.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "from transformers import AutoModelForSequenceClassification\n"
        "dist.init_process_group('nccl')\n"
        "model = AutoModelForSequenceClassification.from_pretrained(\n"
        "    sys.argv[1], num_labels=7, dtype=torch.bfloat16)\n"
        "assert model.config.num_labels == 7 and not model.training\n"
        "print(dist.get_rank(), next(model.parameters()).dtype)\n"
        "model = DistributedDataParallel(model.train().cuda())\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(3):\n"
        "    ids = torch.randint(0, 1000, (4, 64), device='cuda')\n"
        "    labels = torch.zeros(4, dtype=torch.long, device='cuda')\n"
        "    model(input_ids=ids, labels=labels).loss.backward()\n"
        "    optimizer.step()\n"
    )
    lines, report = launched("torchrun", "--nproc-per-node", "2", str(script), str(tmp_path))
    assert sorted(lines) == ["0 torch.bfloat16", "1 torch.bfloat16"]
    assert report.tables[0].rows[0][:2] == ("BertForSequenceClassification, DDP, 2 GPUs", 3)
    config.num_labels = 7
    model = transformers.BertForSequenceClassification(config)
    disk, _ = catalog.node("dgx-h100").disks[0]
    read_s = 2 * sum(p.numel() for p in model.parameters()) / disk.read_bytes_per_s
    assert report.metrics["restart_s"] == pytest.approx(read_s, rel=0.05)


def test_threads_of_libraries_are_the_machine_s(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    script = tmp_path / "threads.py"
    script.write_text(
        "import torch\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from tqdm.contrib.concurrent import thread_map\n"
        "print(thread_map(abs, [-1, -2, -3], max_workers=2, disable=True))\n"
        "with ThreadPoolExecutor(2) as pool:\n"
        "    print(list(pool.map(abs, [-4, -5])))\n"
    )
    lines, _ = launched("python", str(script))
    assert lines == ["[1, 2, 3]", "[4, 5]"]


# ---- what goes wrong -----------------------------------------------------------------------------


def test_the_first_rank_to_fail_ends_all() -> None:
    with pytest.raises(ValueError, match="rank 1 has had enough"):
        launched("torchrun", "--nproc-per-node", "2", "linear_ddp.py", "--fail")


def test_a_model_that_does_not_fit_is_a_result(tmp_path: Path) -> None:
    said = {"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(said))
    command = read_command([
        "deepspeed", "--num_gpus", "1", str(PROGRAMS / "residual_zero.py"), "--width", "20000",
        "--deepspeed_config", str(tmp_path / "ds.json"),
    ])  # fmt: skip
    cluster = Cluster(Simulation(seed=0), machines())
    with pytest.raises(torch.OutOfMemoryError):
        run_launched(command, cluster=cluster)
    (report,) = cluster.env.reports
    assert not report.ok
    assert report.text.startswith("does not fit: the step needs ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dist.get_rank()", "Default process group has not been initialized"),
        ("dist.barrier()", "Default process group has not been initialized"),
        ("torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))", "Default process"),
        ("dist.init_process_group('nccl'); dist.init_process_group('nccl')", "group twice!"),
    ],
)
def test_process_groups_are_the_script_s_own(line: str, message: str, tmp_path: Path) -> None:
    script = tmp_path / "group.py"
    script.write_text(
        "import torch, torch.distributed as dist\nassert not dist.is_initialized()\n" + line
    )
    with pytest.raises(ValueError, match=message):
        launched("torchrun", "--nproc-per-node", "2", str(script))


def test_without_a_launcher_nobody_says_which_rank_it_is(tmp_path: Path) -> None:
    script = tmp_path / "group.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('nccl')\n")
    with pytest.raises(ValueError, match="environment variable RANK expected, but not set"):
        launched("python", str(script))


def test_what_is_not_emulated_says_what_is(tmp_path: Path) -> None:
    script = tmp_path / "parallel.py"
    script.write_text("import deepspeed\ndeepspeed.init_inference(None)\n")
    with pytest.raises(NotEmulatedError, match=r"deepspeed\.initialize"):
        launched("python", str(script))


def test_ranks_exchange_objects(tmp_path: Path) -> None:
    script = tmp_path / "exchange.py"
    script.write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "rank = dist.get_rank()\n"
        "for turn in range(3):\n"
        "    found = [None] * dist.get_world_size()\n"
        "    dist.all_gather_object(found, {'rank': rank, 'turn': turn})\n"
        "    assert found == [{'rank': i, 'turn': turn} for i in range(4)], found\n"
        "    said = [rank, turn]\n"
        "    dist.broadcast_object_list(said, src=2)\n"
        "    assert said == [2, turn], said\n"
        "print(rank)\n"
    )
    lines, _ = launched("torchrun", "--nproc-per-node", "4", str(script))
    assert sorted(lines) == ["0", "1", "2", "3"]
