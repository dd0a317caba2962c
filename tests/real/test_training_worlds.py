"""What a training loop sees of torch, DeepSpeed and its data on virtual time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402

from raysim.hardware import catalog  # noqa: E402
from raysim.kernel.simulation import Simulation  # noqa: E402
from raysim.rayapi.loader import run_program  # noqa: E402
from raysim.rayapi.unsupported import NotEmulatedError  # noqa: E402
from raysim.raycore.cluster import Cluster  # noqa: E402
from tests.real.training_script_parts import (  # noqa: E402
    Net,
    fit,
    fit_value,
    machines,
    script,
    train,
)  # fmt: skip

# ---- the world a worker sees ---------------------------------------------------------------------


def test_workers_see_gpus_ranks_and_no_values() -> None:
    def loop(config: dict[str, Any]) -> dict[str, Any]:
        import os

        import ray.train.torch
        import torch.distributed as dist

        model = ray.train.torch.prepare_model(Net())
        loss = model(torch.randn(8, 1024).to("cuda")).sum()
        return {
            "gpu": torch.cuda.is_available(), "count": torch.cuda.device_count(),
            "memory": torch.cuda.get_device_properties(0).total_memory,
            "rank": (dist.get_rank(), dist.get_world_size(), os.environ["WORLD_SIZE"]),
            "loss": str(loss.item()), "branch": bool(loss > 3),
            "numpy": str(loss.detach().cpu().numpy()), "ddp": isinstance(
                model, torch.nn.parallel.DistributedDataParallel),
            "device": str(ray.train.torch.get_device()),
            "integers": torch.arange(5).sum().item(),
        }  # fmt: skip

    found = fit_value(loop)
    assert found == {
        "gpu": True, "count": 2, "memory": int(catalog.node("dgx-h100").gpu.memory_bytes),
        "rank": (0, 2, "2"), "loss": "nan", "branch": False, "numpy": "nan", "ddp": True,
        "device": "cuda:0", "integers": 10,
    }  # fmt: skip


def test_a_rank_without_gradients_leaves_the_others_theirs() -> None:
    def loop(config: dict[str, Any]) -> bool:
        import ray.train.torch

        if ray.train.get_context().get_world_rank() == 1:
            with torch.no_grad():
                ray.train.report({})
                return torch.is_grad_enabled()
        ray.train.report({})
        return torch.is_grad_enabled()

    assert fit_value(loop) is True


def test_tensors_come_back_from_a_file_as_they_were(tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> list[Any]:
        model = Net(width=256)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
        torch.save(state, tmp_path / "state.pt")
        found = torch.load(tmp_path / "state.pt")
        again = Net(width=256)
        again.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        return [found["epoch"], optimizer.param_groups[0]["lr"], len(found["model"])]

    assert fit_value(loop, workers=1) == [3, 0.5, 8]


def test_a_dataset_is_asked_for_the_first_batches_only() -> None:
    def loop(config: dict[str, Any]) -> Any:
        asked = []

        class Data(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return 1000

            def __getitem__(self, i: int) -> Any:
                asked.append(i)
                return torch.randn(8), i

        loader = torch.utils.data.DataLoader(Data(), batch_size=30)
        return [(x.shape[0], y.shape[0]) for x, y in loader], len(asked)

    sizes, asked = fit_value(loop, workers=1)
    assert sizes == [(30, 30)] * 33 + [(10, 10)]
    assert asked == 2 * 30 + 10


def test_a_slow_loader_holds_the_steps_up() -> None:
    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 640

        def __getitem__(self, i: int) -> Any:
            import time

            time.sleep(0.01)
            return torch.randn(1024)

    def loop(config: dict[str, Any]) -> None:
        import ray.train.torch

        model = ray.train.torch.prepare_model(Net())
        optimizer = torch.optim.AdamW(model.parameters())
        loader = torch.utils.data.DataLoader(Slow(), batch_size=64, num_workers=config["workers"])
        for x in ray.train.torch.prepare_data_loader(loader):
            model(x).mean().backward()
            optimizer.step()

    steps = {}
    for workers in (0, 4, 16):
        _, report = fit(lambda _, n=workers: loop({"workers": n}), workers=1)
        steps[workers] = report.metrics["step_seconds"]
    assert steps[0] == pytest.approx(0.64, rel=0.05)
    assert steps[4] == pytest.approx(0.16, rel=0.05)
    assert steps[16] == pytest.approx(0.04, rel=0.05)


def test_a_loop_resumes_from_the_checkpoint_it_loads() -> None:
    def loop(config: dict[str, Any]) -> int:
        import tempfile

        import ray.train.torch

        model = ray.train.torch.prepare_model(Net())
        optimizer = torch.optim.AdamW(model.parameters())
        start = 0
        found = ray.train.get_checkpoint()
        if found:
            state = torch.load(f"{found.path}/state.pt")
            model.module.load_state_dict(state["model"])
            start = state["step"]
        for step in range(start, 6):
            model(torch.randn(64, 1024, device="cuda")).mean().backward()
            optimizer.step()
            if step == 4 and not found:
                raise RuntimeError("lost")
            with tempfile.TemporaryDirectory() as folder:
                state = {"model": model.module.state_dict(), "step": step + 1}
                torch.save(state, f"{folder}/state.pt")
                ray.train.report({"step": step}, ray.train.Checkpoint.from_directory(folder))
        return start

    cluster = Cluster(Simulation(seed=0), machines())

    def main() -> Any:
        import ray.train
        from ray.train.torch import TorchTrainer

        return TorchTrainer(
            loop,
            train_loop_config={},
            scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=True),
            run_config=ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=1)),
        ).fit()

    result, _ = run_program(main, cluster)
    (report,) = cluster.env.reports
    assert (result.return_value, result.metrics) == (4, {"step": 5})
    attempts = next(t for t in report.tables if t.title == "Attempts").rows
    assert [row[2:4] for row in attempts] == [(0, 5), (4, 6)]


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda: __import__("deepspeed").moe.sharded_moe.topkgating(None), "deepspeed.moe"),
        (lambda: __import__("deepspeed").init_inference(None), "deepspeed.init_inference"),
    ],
)
def test_what_is_not_emulated_is_refused_by_name(use: Any, name: str) -> None:
    error, _ = fit(lambda _: use())
    assert isinstance(error, NotEmulatedError)
    assert name in str(error)


def test_deepspeeds_own_refusals_are_its_own() -> None:
    def loop(config: dict[str, Any]) -> None:
        import deepspeed

        net = Net()
        deepspeed.initialize(
            model=net, model_parameters=net.parameters(),
            config={"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2},
        )  # fmt: skip

    error, _ = fit(loop)
    assert "DeepSpeedConfigError" in str(error)
    assert "train_batch_size" in str(error)


def test_everything_is_put_back() -> None:
    before = (
        torch.cuda.is_available, nn.Module.__call__, torch.Tensor.backward, torch.save,
        torch.optim.Optimizer.__init__, sys.modules.get("deepspeed"), list(sys.meta_path),
    )  # fmt: skip
    fit(train, steps=1)
    after = (
        torch.cuda.is_available, nn.Module.__call__, torch.Tensor.backward, torch.save,
        torch.optim.Optimizer.__init__, sys.modules.get("deepspeed"), list(sys.meta_path),
    )  # fmt: skip
    assert before == after
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_a_script_runs_the_same_twice() -> None:
    runs = [script("vit_ddp", "--samples", "512", "--depth", "2") for _ in range(2)]
    assert runs[0][1].metrics == runs[1][1].metrics


def test_workers_on_cpus_know_their_ranks() -> None:
    cluster = Cluster(Simulation(seed=0), machines())

    def loop() -> Any:
        import time

        import torch.distributed as dist

        began = time.time()
        time.sleep(7 if dist.get_rank() == 1 else 0)
        dist.barrier()
        return dist.get_rank(), dist.get_world_size(), round(time.time() - began)

    def main() -> Any:
        import ray.train
        from ray.train.torch import TorchTrainer

        scaling = ray.train.ScalingConfig(num_workers=2)
        return TorchTrainer(loop, scaling_config=scaling).fit().return_value

    assert run_program(main, cluster)[0] == (0, 2, 7)


def test_evaluation_takes_forward_passes_only() -> None:
    def loop(config: dict[str, Any]) -> float:
        import time

        import ray.train.torch

        model = ray.train.torch.prepare_model(Net())
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(4096, 1024, device="cuda")
        model(x).mean().backward()
        optimizer.step()
        model.eval()
        began = time.perf_counter()
        with torch.inference_mode():
            for _ in range(10):
                model(x)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    result, report = fit(loop)
    # The input's copy from pageable memory bounds a pass, and is hidden in a step.
    assert 0.1 < result.return_value / 10 / report.metrics["step_seconds"] < 0.7


def test_torch_may_be_loaded_while_a_program_runs() -> None:
    code = """
import sys
from raysim.rayapi.loader import run_program
from tests.raycore_parts import ray_cluster

def loop():
    import ray.train.torch, torch
    model = ray.train.torch.prepare_model(torch.nn.Linear(64, 64))
    model(torch.randn(8, 64, device="cuda")).mean().backward()
    return torch.cuda.is_available()

def main():
    assert "torch" not in sys.modules
    import ray.train.torch
    scaling = ray.train.ScalingConfig(num_workers=2, use_gpu=True)
    return ray.train.torch.TorchTrainer(loop, scaling_config=scaling).fit().return_value

print(run_program(main, ray_cluster(gpus=2))[0])
import torch
print(torch.cuda.is_available())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["True", str(torch.cuda.is_available())]


def test_every_worker_of_a_node_has_a_gpu_of_its_own(tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> list[str]:
        import ray.train.torch
        import torch.distributed as dist

        seen = ray.train.torch.get_device(), torch.cuda.current_device()
        (tmp_path / str(dist.get_rank())).write_text(f"{seen[0]} {seen[1]}")
        dist.barrier()
        return [(tmp_path / str(rank)).read_text() for rank in range(3)]

    assert fit_value(loop, workers=3) == ["cuda:0 0", "cuda:1 1", "cuda:2 2"]
