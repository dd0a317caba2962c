"""Files of real checkpoints: names, bytes, and bytes of the tensors in them.

    python -m torch.distributed.run --nproc-per-node 2 checkpoint_files.py FOLDER TARGET.json

and again with 4, saves and reads what ``CASES`` lists for so many ranks, with DeepSpeed and torch
on the CPU, after one optimizer step;
``validation/data/checkpoints/files.json`` is what it wrote: of every file its bytes, those of its
tensors and those of scalars (Adam's ``step``), and how often each rank opens which file to load.
``checkpoint_files.py rates`` says how fast one thread runs ``torch.save`` and ``torch.load``
against memory.
"""

from __future__ import annotations

import gc
import json
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

from raysim.measure.training_rank import TRAINERS

LLAMA = {
    "model_type": "llama", "vocab_size": 203, "hidden_size": 56, "intermediate_size": 118,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": 203, "n_embd": 44, "n_head": 4, "n_layer": 3,
    "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": True,
}  # fmt: skip
ODD = GPT2 | {"n_embd": 42, "n_head": 3, "vocab_size": 204}
"""Its elements are no multiple of four: ZeRO-1/2 pad their flat group."""
BATCH = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
BF16 = {"bf16": {"enabled": True}}
GATHER = {"stage3_gather_16bit_weights_on_model_save": True}


def _zero(stage: int, **more: Any) -> dict[str, Any]:
    return {
        **BATCH, "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 20_000, **more},
    }  # fmt: skip


def _case(name: str, engine: str, model: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name, "engine": engine, "ranks": 2, "model": model, "seq": 32, "config": config
    }  # fmt: skip


CASES = [
    *(_case(f"llama-zero{s}", "deepspeed", LLAMA, _zero(s)) for s in (0, 1, 2)),
    *(_case(f"llama-zero{s}-bf16", "deepspeed", LLAMA, _zero(s) | BF16) for s in (0, 1, 2)),
    *(_case(f"gpt2-tied-zero{s}-bf16", "deepspeed", GPT2, _zero(s) | BF16) for s in (0, 1, 2)),
    *(_case(f"gpt2-odd-zero{s}-bf16", "deepspeed", ODD, _zero(s) | BF16) for s in (1, 2, 3)),
    _case("llama-zero1-bf16-fp32-accumulation", "deepspeed", LLAMA,
          _zero(1) | BF16 | {"data_types": {"grad_accum_dtype": "fp32"}}),
    _case("llama-zero3", "deepspeed", LLAMA, _zero(3, **GATHER)),
    _case("llama-zero3-bf16", "deepspeed", LLAMA, _zero(3, **GATHER) | BF16),
    _case("gpt2-tied-zero3-bf16", "deepspeed", GPT2, _zero(3, **GATHER) | BF16),
    _case("llama-zero3-bf16-sub-groups", "deepspeed", LLAMA,
          _zero(3, sub_group_size=20_000, **GATHER) | BF16),
    _case("llama-pipeline-zero0", "pipeline", LLAMA, _zero(0)),
    _case("llama-pipeline-zero0-bf16", "pipeline", LLAMA, _zero(0) | BF16),
    _case("llama-pipeline-zero1-bf16", "pipeline", LLAMA, _zero(1) | BF16),
    _case("llama-pipeline-dp2-zero1-bf16", "pipeline", LLAMA, _zero(1) | BF16) | {"ranks": 4},
    _case("llama-pipeline-dp2-parallel-write", "pipeline", LLAMA,
          _zero(1) | BF16 | {"checkpoint": {"parallel_write": {"pipeline_stage": True}}})
    | {"ranks": 4},
    _case("llama-ddp", "ddp", LLAMA, BATCH),
    _case("llama-fsdp2", "fsdp2", LLAMA, BATCH),
]  # fmt: skip


def sizes(found: Any, seen: dict[int, tuple[bool, int]]) -> None:
    """Distinct storages below ``found``, by address: whether a scalar's, and bytes."""
    if isinstance(found, torch.Tensor):
        storage = found.untyped_storage()
        if storage.nbytes():
            seen.setdefault(storage.data_ptr(), (found.dim() == 0, storage.nbytes()))
    elif isinstance(found, dict):
        for value in found.values():
            sizes(value, seen)
    elif isinstance(found, (list, tuple)):
        for value in found:
            sizes(value, seen)


def files_of(folder: Path) -> dict[str, list[int]]:
    """Every file: bytes, bytes of tensors, bytes of scalars."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix == ".py":
            continue
        seen: dict[int, tuple[bool, int]] = {}
        if path.suffix in (".pt", ".bin"):
            sizes(torch.load(path, map_location="cpu", weights_only=False), seen)
        held = [sum(n for scalar, n in seen.values() if scalar == kind) for kind in (False, True)]
        found[str(path.relative_to(folder))] = [path.stat().st_size, *held]
    return found


def save(trainer: Any, case: dict[str, Any], folder: Path) -> None:
    """The save that the engine's users write, by the engine's own functions."""
    if case["engine"] in ("deepspeed", "pipeline"):
        trainer.engine.save_checkpoint(str(folder), tag="t")
        if case["engine"] == "deepspeed":
            trainer.engine.save_16bit_model(str(folder), "whole.bin")
    elif case["engine"] == "fsdp2":
        model, optimizer = get_state_dict(trainer.net, trainer.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=str(folder / "sharded"))
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = get_state_dict(trainer.net, trainer.optimizer, options=whole)
        if dist.get_rank() == 0:
            torch.save({"model": model, "optimizer": optimizer}, folder / "full.pt")
    elif dist.get_rank() == 0:
        state = {"model": trainer.net.state_dict(), "optimizer": trainer.optimizer.state_dict()}
        torch.save(state, folder / "ddp.pt")


def reads(trainer: Any, folder: Path) -> dict[str, int]:
    """How often this rank opens each file on its way back."""
    opened: dict[str, int] = {}
    plain = torch.load

    def counting(path: Any, *args: Any, **keys: Any) -> Any:
        if isinstance(path, (str, Path)):
            name = str(Path(path).relative_to(folder))
            opened[name] = opened.get(name, 0) + 1
        return plain(path, *args, **keys)

    torch.load = counting  # type: ignore[assignment]
    try:
        trainer.engine.load_checkpoint(str(folder), tag="t")
    except KeyError:  # BF16_Optimizer at stage 0 does not read back what it wrote
        opened = {"fails": 1}
    finally:
        torch.load = plain
    return opened


def rates() -> dict[str, float]:
    """Bytes per second of one thread: median of five, 512 MiB of fp32 to and from memory."""
    block, file = {"x": torch.rand(1 << 27)}, Path("/dev/shm/checkpoint_rate.pt")  # noqa: S108

    def rate(work: Callable[[], Any]) -> float:
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        return float(block["x"].numel() * 4 / statistics.median(seconds))

    found = {
        "save": rate(lambda: torch.save(block, file)), "load": rate(lambda: torch.load(file))
    }  # fmt: skip
    file.unlink()
    return found


def main() -> None:
    """Every case; rank 0 writes what is on the disk and what each rank read."""
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = json.loads(target.read_text())["cases"] if target.exists() else []
    for case in (c for c in CASES if c["ranks"] == dist.get_world_size()):
        here = folder / case["name"]
        if dist.get_rank() == 0:
            shutil.rmtree(here, ignore_errors=True)
            here.mkdir(parents=True)
        dist.barrier()
        trainer: Any = TRAINERS[case["engine"]](case)
        trainer.step()
        save(trainer, case, here)
        dist.barrier()
        opened: list[Any] = [None] * dist.get_world_size()
        mine = reads(trainer, here) if case["engine"] in ("deepspeed", "pipeline") else {}
        dist.all_gather_object(opened, mine)
        trainer.close()
        del trainer
        gc.collect()
        found.append(case | {"files": files_of(here), "reads": opened})
        dist.barrier()
        if dist.get_rank() == 0:
            print(case["name"], flush=True)
    if dist.get_rank() == 0:
        import deepspeed

        made = {
            "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__,
            "deepspeed": deepspeed.__version__, "python": platform.python_version(),
            "host": "2 cores of an Intel Xeon at 2.x GHz in a virtual machine, gloo",
            "made_by": "validation/programs/checkpoint_files.py",
        }  # fmt: skip
        target.write_text(json.dumps({"made": made, "cases": found}, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:] == ["rates"]:
        torch.set_num_threads(1)
        print(rates())
    else:
        main()
