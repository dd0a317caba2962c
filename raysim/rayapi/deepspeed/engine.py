"""``deepspeed.initialize`` and the engine it returns.

Real counterpart: ``deepspeed/runtime/engine.py``. Forward and backward are queued as any model's
(``rayapi.shapes``); ``step()`` lets the step pass at the boundary of gradient accumulation.
Checkpoints are files that stand for the bytes the tower says each rank writes.

Not modelled: monitors, curriculum and other features of the JSON that the tower does not know (said
where it is read), elasticity, loading weights from files.
"""

from __future__ import annotations

import pickle
from argparse import ArgumentParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from raysim.rayapi.checkpoint import STANDS_FOR, Checkpoint
from raysim.rayapi.deepspeed import autotp, expert_parallel, ops
from raysim.rayapi.deepspeed.comm import init_distributed
from raysim.rayapi.deepspeed.groups import replicas_of_batch, sequence_parallel, tensor_parallel
from raysim.rayapi.deepspeed.moe_groups import configure_moe_param_groups
from raysim.rayapi.deepspeed.offloaded import Offloaded
from raysim.rayapi.deepspeed.schedules import schedule_of
from raysim.rayapi.deepspeed.settings import config_of, read
from raysim.rayapi.deepspeed.zero import ZeroParamStatus
from raysim.rayapi.shapes.here import steps_here
from raysim.rayapi.shapes.optimizers import optimizer_of
from raysim.rayapi.shapes.plans import Wrapping
from raysim.rayapi.shapes.prediction import Prediction
from raysim.rayapi.shapes.steps import Steps
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.training.checkpoint.cost import CheckpointCost, checkpoint_cost
from raysim.training.checkpoint.stored import Kind
from raysim.training.settings.deepspeed import DeepSpeedConfig, Optimizer
from raysim.training.settings.parallel import Mesh
from raysim.units import to_ns

_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def _worker(call: str) -> Steps:
    steps = steps_here()
    if steps is None:
        raise NotEmulatedError(
            f"{call} outside of a training worker with a GPU",
            "raysim run deepspeed SCRIPT, or TorchTrainer(..., use_gpu=True)",
        )
    return steps


def _half(given: torch.Tensor) -> torch.Tensor:
    return given.half() if given.is_floating_point() else given


def add_config_arguments(parser: ArgumentParser) -> ArgumentParser:
    """``deepspeed.add_config_arguments``."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", default=False, action="store_true")
    group.add_argument("--deepspeed_config", default=None, type=str)
    return parser


def initialize(
    args: Any = None,
    model: Any = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: Any = None,
    distributed_port: int = 29500,
    lr_scheduler: Any = None,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Any = None,
    config: Any = None,
    mesh_param: Any = None,
    config_params: Any = None,
) -> tuple[Any, Any, Any, Any]:
    """``deepspeed.initialize``: engine, optimizer, loader, scheduler."""
    from raysim.rayapi.deepspeed.pipe import PipelineEngine, PipelineModule

    del distributed_port, dist_init_required
    assert model is not None, "deepspeed.initialize requires a model"
    steps = _worker("deepspeed.initialize")
    _refuse_mesh(mesh_param, config_of(config if config is not None else config_params, args)[1])
    init_distributed()
    piped = isinstance(model, PipelineModule)
    assert not piped or mpu is None, "mpu must be None with pipeline parallelism"
    kind = PipelineEngine if piped else DeepSpeedEngine
    engine = kind(
        steps, model, optimizer, model_parameters, lr_scheduler,
        config=config if config is not None else config_params, args=args, mpu=mpu,
    )  # fmt: skip
    loader = None
    if training_data is not None:
        loader = engine.deepspeed_io(training_data, collate_fn=collate_fn)
        engine.training_dataloader = loader
    return engine, engine.optimizer, loader, engine.lr_scheduler


def _refuse_mesh(asked: Any, said: dict[str, Any]) -> None:
    """Of data by sequences, over whose first dimension alone DeepSpeed would shard and reduce."""
    keys = "data_parallel_size", "sequence_parallel_size"
    shape = asked or (tuple(said[key] for key in keys) if all(k in said for k in keys) else ())
    if len(shape) > 1 and shape[1] > 1:
        raise NotEmulatedError(
            f"deepspeed.initialize over a mesh of {shape[0]} x {shape[1]}",
            "the mpu of UlyssesSPAttentionHF, or DistributedAttention over groups of one's own",
        )


class DeepSpeedEngine(torch.nn.Module):
    """``deepspeed.DeepSpeedEngine``."""

    stages = 1

    def __init__(
        self, steps: Steps, model: Any, optimizer: Any, parameters: Any, lr_scheduler: Any, *,
        config: Any, args: Any, mpu: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._steps = steps
        context = steps.worker.context
        self.world_size, self.global_rank = context.world_size, context.rank
        self.local_rank = context.local_rank
        self.device = torch.device("cuda", steps.worker.devices[0])
        given = list(parameters if parameters is not None else model.parameters())
        if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer(given)
        client = optimizer_of(optimizer) if optimizer is not None else None
        self._json = config_of(config, args)[1]
        shared = autotp.degree(self._json)
        self.mpu, tp = mpu, max(shared, tensor_parallel(mpu))
        self.mesh = Mesh(
            pp=self.stages, dp=self.world_size // self.stages // tp, tp=tp,
            ep=expert_parallel.ep_size(model, tp=tp),
        )  # fmt: skip
        self._settings = read(
            config,
            args,
            stages=self.stages,
            client=client,
            say=steps.say,
            # AutoTP's peers count as replicas there: it makes groups behind DeepSpeedConfig.
            data_parallel=replicas_of_batch(
                mpu, self.mesh.dp * (shared if mpu is None else 1), self._json
            ),
        )
        if shared > 1:
            autotp.parallelized(model, self._json, shared)
        self.module = model.to(self.device).to(_TYPES[self._settings.precision])
        mixtures = expert_parallel.mixtures(self.module)
        self.has_moe_layers, self.num_experts = bool(mixtures), [m.num_experts for m in mixtures]
        expert_parallel.make_groups(self.module, largest=self.mesh.ep, say=steps.say)
        if self._settings.zero.stage == 3:
            for number, p in enumerate(self.module.parameters()):
                p.ds_id, p.ds_shape, p.ds_numel = number, p.shape, p.numel()
                p.ds_status = ZeroParamStatus.NOT_AVAILABLE
        if optimizer is None and given:  # without parameters it only evaluates
            grouped = configure_moe_param_groups(given) if mixtures else given
            optimizer = _of_json(grouped, self._settings)
        expert_parallel.check(self.module, optimizer, self._settings)
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        if callable(lr_scheduler) and not hasattr(lr_scheduler, "step"):
            self.lr_scheduler = lr_scheduler(self.optimizer)
        if lr_scheduler is None:
            self.lr_scheduler = schedule_of(self._json.get("scheduler", {}), self.optimizer)
        self.raysim_wrapping = Wrapping(
            module=self.module, engine="deepspeed", meets=True,
            deepspeed=self._settings, mesh=self.mesh, moe=self.has_moe_layers,
            pieces=sequence_parallel(mpu),
            autocasts=bool(self._json.get("torch_autocast", {}).get("enabled")),
            optimizer=client or self._settings.optimizer or Optimizer(),
        )  # fmt: skip
        self.config = config
        self.training_dataloader: Any = None
        self.tput_timer = SimpleNamespace(update_epoch_count=lambda: None)  # it says nothing
        self._step_applied = False
        self._latest: Prediction | None = None
        self._is_boundary: bool | None = None
        self._offloaded, self._is_compiled = Offloaded(self), False
        self.micro_steps = self.global_steps = self.global_samples = self.skipped_steps = 0

    def __getattr__(self, name: str) -> Any:
        """Attributes of the module that the engine has not."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            if name in _REFUSED:
                raise NotEmulatedError(f"engine.{name}", "engine.save_checkpoint") from None
            return getattr(self.module, name)

    @property
    def _replica(self) -> int:
        if not hasattr(self.mpu, "get_data_parallel_rank"):
            return self.mesh.coordinate(self.global_rank).dp
        return int(self.mpu.get_data_parallel_rank())

    # ---- a step ----------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Of the module, whose weights are here."""
        self._offloaded.check()
        return super().__call__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Of the module; ``fp16.auto_cast`` halves what is given by position."""
        if self._json.get("fp16", {}).get("auto_cast"):
            args = torch.utils._pytree.tree_map_only(torch.Tensor, _half, args)  # noqa: SLF001
        return self.module(*args, **kwargs)

    def backward(self, loss: Any, *_args: Any, **_kwargs: Any) -> Any:
        """``engine.backward(loss)``."""
        self._steps.backward(loss, gradients=False)
        return loss

    def step(self, *_args: Any, **_kwargs: Any) -> None:
        """``engine.step()``."""
        self._step_applied = self.is_gradient_accumulation_boundary()
        if self._step_applied:
            self._take_step()
        self.micro_steps += 1

    def was_step_applied(self) -> bool:
        """Whether the latest ``step()`` updated."""
        return self._step_applied

    def destroy(self) -> None:
        """What it frees is freed with the worker."""

    def _take_step(self) -> None:
        steps = self._steps
        if steps.several.on:
            steps.several.step(None, self.optimizer, None)
        else:
            steps.take_step(steps.asked(self.gradient_accumulation_steps()))
        self._latest = steps.latest
        self.optimizer._opt_called = True  # noqa: SLF001  (torch's schedulers ask for it)
        self.global_steps += 1
        self.global_samples += self.train_batch_size()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether ``step()`` would update."""
        if self._is_boundary is not None:
            return self._is_boundary
        return (self.micro_steps + 1) % self.gradient_accumulation_steps() == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Who calls it counts micro-batches itself."""
        self._is_boundary = is_boundary

    def zero_grad(self, set_to_none: bool = True) -> None:
        """There are none."""
        del set_to_none

    def no_sync(self) -> Any:
        """As DeepSpeed's."""
        from contextlib import nullcontext

        return nullcontext()

    def deepspeed_io(
        self, dataset: Any, batch_size: int | None = None, route: str = "train",
        pin_memory: bool = True, data_sampler: Any = None, collate_fn: Any = None,
        num_local_io_workers: int | None = None,
    ) -> Any:  # fmt: skip
        """A loader of each replica's own samples, by two processes, as DeepSpeed makes it."""
        from torch.utils.data import DataLoader, DistributedSampler

        sampler: Any = data_sampler or DistributedSampler(
            dataset, num_replicas=self.mesh.dp, rank=self._replica,
            shuffle=route == "train",
        )  # fmt: skip
        return DataLoader(
            dataset, batch_size=batch_size or self.train_micro_batch_size_per_gpu(),
            sampler=sampler, collate_fn=collate_fn, pin_memory=pin_memory,
            num_workers=2 if num_local_io_workers is None else num_local_io_workers,
            drop_last=bool(self._json.get("dataloader_drop_last", False)),
        )  # fmt: skip

    # ---- what it is asked ------------------------------------------------------------------------

    def train_batch_size(self) -> int:
        """Samples of a step, of all ranks."""
        return self._settings.train_batch_size

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples of a forward."""
        return self._settings.train_micro_batch_size_per_gpu

    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a step."""
        return self._settings.gradient_accumulation_steps

    def gradient_clipping(self) -> float:
        """Of the JSON."""
        return self._settings.gradient_clipping

    def zero_optimization_stage(self) -> int:
        """Of ZeRO."""
        return self._settings.zero.stage

    def zero_optimization(self) -> bool:
        """Whether it is ZeRO."""
        return self._settings.zero.stage > 0

    def fp16_enabled(self) -> bool:
        """Of the JSON."""
        return self._settings.precision == "fp16"

    def bfloat16_enabled(self) -> bool:
        """Of the JSON."""
        return self._settings.precision == "bf16"

    def get_lr(self) -> list[float]:
        """Of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float:
        """It has no value."""
        return float("nan")

    # ---- checkpoints -----------------------------------------------------------------------------

    def save_checkpoint(
        self, save_dir: str, tag: str | None = None, client_state: dict[str, Any] | None = None,
        save_latest: bool = True, **_more: Any,
    ) -> bool:  # fmt: skip
        """``engine.save_checkpoint``: every rank writes its files."""
        steps, found = self._steps, self._known("save_checkpoint")
        steps.synchronize()
        tag = tag or f"global_step{self.global_steps}"
        folder = Path(save_dir, str(tag))
        folder.mkdir(parents=True, exist_ok=True)
        cost = self._cost(found, "full")
        for file in cost.files:
            if file.rank == self.global_rank:
                _stand_in(folder / file.name, file.size_bytes)
        if self.global_rank == 0:
            counts = (self.global_steps, self.global_samples, self.micro_steps)
            groups = [
                {k: v for k, v in group.items() if k != "params"}
                for group in self.optimizer.param_groups
            ]
            said = {"client_state": client_state or {}, "counts": counts, "groups": groups}
            (folder / _STATE).write_bytes(pickle.dumps(said))
            if save_latest:
                Path(save_dir, "latest").write_text(str(tag))
        self._stand_still(cost.stall_seconds, "checkpoints")
        return True

    def save_16bit_model(
        self, save_dir: str, save_filename: str = "pytorch_model.bin", **_more: Any
    ) -> bool:
        """``engine.save_16bit_model``: weights alone, which ZeRO-3 gathers if its JSON says so."""
        found, zero = self._known("save_16bit_model"), self._settings.zero
        if zero.stage == 3 and not zero.stage3_gather_16bit_weights_on_model_save:
            return False
        self._steps.synchronize()
        cost = self._cost(found, "model")
        mine = sum(file.size_bytes for file in cost.files if file.rank == self.global_rank)
        if mine:
            _stand_in(Path(save_dir, save_filename), mine)
        self._stand_still(cost.stall_seconds, "checkpoints")
        return True

    save_fp16_model = save_16bit_model

    def _zero3_consolidated_16bit_state_dict(self, **_more: Any) -> dict[str, Any] | None:
        """The whole model's weights, which rank 0 holds; what gathering them takes is not paid."""
        return self.module.state_dict() if self.global_rank == 0 else None

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        """Of the JSON."""
        return self._settings.zero.stage3_gather_16bit_weights_on_model_save

    def offload_states(
        self, include: Any = None, device: Any = "cpu", pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> None:  # fmt: skip
        """``engine.offload_states``: to main memory, until they are called back."""
        del non_blocking
        self._offloaded.offload(include, device, pin_memory=pin_memory)

    def reload_states(self, non_blocking: bool = False) -> None:
        """``engine.reload_states``."""
        del non_blocking
        self._offloaded.reload()

    @property
    def is_compiled(self) -> bool:
        """Whether ``compile()`` was called."""
        return self._is_compiled

    def compile(
        self, backend: Any = "inductor", compile_kwargs: Any = None, **_more: Any
    ) -> None:  # fmt: skip
        """``engine.compile()``: what ``torch.compile`` makes of the module, once."""
        if self._is_compiled:
            return
        self._is_compiled = True
        if self._json.get("compile", {}).get("deepcompile"):
            self._steps.say(_DEEPCOMPILE)
        self.module.compile(**{**(compile_kwargs or {}), "backend": backend})

    def load_checkpoint(
        self, load_dir: str, tag: str | None = None, load_module_strict: bool = True,
        load_optimizer_states: bool = True, **_more: Any,
    ) -> tuple[str | None, dict[str, Any] | None]:  # fmt: skip
        """``engine.load_checkpoint``: where from, and what the script had saved beside it."""
        del load_module_strict
        latest = Path(load_dir, "latest")
        if tag is None:
            if not latest.is_file():
                return None, None
            tag = latest.read_text().strip()
        file = Path(load_dir, tag, _STATE)
        if not file.is_file():
            return None, None
        said = pickle.loads(file.read_bytes())  # noqa: S301  (our own bytes)
        self.global_steps, self.global_samples, self.micro_steps = said["counts"]
        if load_optimizer_states:
            for group, saved in zip(self.optimizer.param_groups, said["groups"], strict=True):
                group.update(saved)
        size_bytes = Checkpoint(str(Path(load_dir, tag))).size_bytes
        self._steps.worker.read_bytes(size_bytes / self.world_size)
        return str(Path(load_dir, tag)), said["client_state"]

    def _known(self, call: str) -> Prediction:
        found = self._latest or self._steps.latest  # which its optimizer may have taken, by itself
        if found is None:
            raise NotEmulatedError(f"engine.{call} before the first step", f"{call} after a step")
        return found

    def _cost(self, found: Prediction, kind: Kind) -> CheckpointCost:
        saves, key = self._steps.shared.saves, (id(found), kind)
        cost = saves.get(key)
        if cost is None:
            cost = saves[key] = checkpoint_cost(found.plan, found.outcome.comms, kind)
        return cost

    def _stand_still(self, seconds: float, phase: str) -> None:
        worker = self._steps.worker
        worker.phase(phase)
        worker.sleep_ns(to_ns(seconds))
        worker.meet()
        worker.phase("between")


_REFUSED = ("load_module_state_dict",)
_STATE = "raysim_client_state.pkl"
_DEEPCOMPILE = (
    "DeepCompile's passes over ZeRO are not modelled: the module is taken to be compiled as by "
    "torch.compile, its gathers and reductions as without it"
)


def _stand_in(path: Path, size_bytes: int) -> None:
    """A file that stands for so many bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(STANDS_FOR + str(size_bytes).encode() + b"\n")


def _of_json(parameters: list[Any], config: DeepSpeedConfig) -> Any:
    """The optimizer that DeepSpeed builds."""
    said = config.optimizer or Optimizer()
    names = {"adam": ops.FusedAdam, "adamw": ops.FusedAdam, "lamb": ops.FusedLamb,
             "lion": ops.FusedLion}  # fmt: skip
    kind = names.get(said.type.lower(), ops.FusedAdam)
    return kind(parameters, lr=said.lr)
