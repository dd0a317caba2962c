"""Typed DeepSpeed settings that raysim honours, with DeepSpeed 0.19's defaults.

Field names are the keys of the JSON. Sizes count elements, not bytes.
``scenario/deepspeed_json.py`` reads a user's file into this; nothing here knows about files.

Source: ``deepspeed/runtime/constants.py``, ``zero/config.py``, ``zero/offload_config.py``,
``runtime/config.py`` of DeepSpeed 0.19.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from raysim.errors import ScenarioError
from raysim.training.settings.loss_scale import LossScale

Precision = Literal["fp32", "fp16", "bf16"]
Device = Literal["none", "cpu", "nvme"]
ScheduleName = Literal[
    "1f1b",
    "gpipe",
    "megatron_1f1b",
    "interleaved",
    "looped_bfs",
    "zb_h1",
    "zb_h2",
    "zb_v",
    "v_half",
    "v_min",
    "dualpipe_v",
    "dualpipe",
]
"""DeepSpeed's own is 1f1b; the others are of Megatron-LM, torch and DualPipe (``pipelines``)."""
InTurn = Literal["in_turn"]
"""One process that has spread a model over its GPUs: one works at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadOptimizer:
    """``zero_optimization.offload_optimizer``."""

    device: Device = "none"
    pin_memory: bool = True
    ratio: float = 1.0
    """Share of the sub-groups that step on the CPU (Twin-Flow); the first ones stay on the GPU."""
    buffer_count: int = 4
    pipeline_read: bool = False
    pipeline_write: bool = False
    fast_init: bool = False
    """Of setting up only."""
    super_offload: bool = False
    """Adam runs in a process beside each rank (stage 3, on the host)."""
    cpuadam_cores_perc: float = 0.8
    """Its share of the cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aio:
    """``aio``: how DeepSpeed's threads read and write NVMe."""

    block_size: int = 1_048_576
    queue_depth: int = 8
    intra_op_parallelism: int = 1
    use_gds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadParam:
    """``zero_optimization.offload_param``; silently ignored by DeepSpeed below stage 3."""

    device: Device = "none"
    pin_memory: bool = True
    buffer_count: int = 5
    buffer_size: int = 100_000_000
    max_in_cpu: int = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroConfig:
    """``zero_optimization``."""

    stage: Literal[0, 1, 2, 3] = 0
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: int = 500_000_000
    use_multi_rank_bucket_allreduce: bool = True
    allgather_bucket_size: int = 500_000_000
    overlap_comm: bool | None = None
    """None: DeepSpeed turns it on for stage 3 only."""
    round_robin_gradients: bool = False
    sub_group_size: int = 1_000_000_000
    stage3_prefetch_bucket_size: int = 50_000_000
    stage3_param_persistence_threshold: int = 100_000
    stage3_model_persistence_threshold: int = 2**63 - 1
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_max_reuse_distance: int = 1_000_000_000
    stage3_gather_16bit_weights_on_model_save: bool = False
    stage3_allgather_sequential: bool = False
    stage3_module_granularity_threshold: int = 0
    memory_efficient_linear: bool = True
    offload_optimizer: OffloadOptimizer = field(default_factory=OffloadOptimizer)
    offload_param: OffloadParam = field(default_factory=OffloadParam)
    aio: Aio = field(default_factory=Aio)
    """A block of its own in the JSON."""
    zero_hpz_partition_size: int = 1
    zero_quantized_weights: bool = False
    zero_quantized_gradients: bool = False
    mics_shard_size: int = -1
    """Above 0: MiCS, of releases before 0.19.7."""
    mics_hierarchical_params_gather: bool = False

    def shard_ranks(self, ranks: int) -> int:
        """Of ``ranks`` replicas, over how many the model states are cut."""
        return self.mics_shard_size if self.mics_shard_size > 0 else ranks

    @property
    def swaps(self) -> bool:
        """Whether anything lives on NVMe."""
        return "nvme" in (self.offload_optimizer.device, self.offload_param.device)

    @property
    def overlaps(self) -> bool:
        """Whether gradient reduction runs beside backward."""
        return self.stage == 3 if self.overlap_comm is None else self.overlap_comm


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """``optimizer``: the type decides bytes per parameter and the step's kernel."""

    type: str = "AdamW"
    lr: float = 1e-3
    fused: bool = True
    """DeepSpeed's FusedAdam or torch's ``fused=True``; False: torch's ``foreach``, or its loop."""
    foreach: bool = True
    """Of torch's that are not fused: a few kernels over all tensors; False: a loop over them, which
    ``torch.optim.AdamW(fused=False)`` runs as well."""
    momentum: float = 0.0
    """Of SGD: whether a momentum buffer exists."""
    temporaries: int | None = None
    """Tensors as large as each parameter that a step which is not fused has at once, beside states;
    None: as its type is known to (``states.optimizer``)."""
    sparse: str = ""
    """Type of the one that updates parameters of sparse gradients; "": this one."""
    heard: bool = False
    """A script's own, whose step is priced among what the script does beside the model's."""
    on_muon: tuple[tuple[int, int], ...] | None = None
    """Of Muon: rows and columns of each matrix that it updates; None: as DeepSpeed picks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """``pipeline``, PipelineModule's constructor arguments, and those of other schedules."""

    stages: int = 1
    """Ranks of the pipeline."""
    partition_method: str = "parameters"
    """uniform, parameters or ``type:regex``; ``blocks``: as Megatron-LM cuts."""
    activation_checkpoint_interval: int = 0
    pipe_partitioned: bool = True
    grad_partitioned: bool = True
    schedule: ScheduleName | InTurn = "1f1b"
    virtual_stages: int | None = None
    """Stages ("model chunks") per rank; None: the schedule's own number, or one."""
    layers_per_stage: tuple[int, ...] = ()
    """Blocks of each stage in the model's order; (): by ``partition_method``."""
    first_layers: tuple[int, ...] = ()
    """Where each stage begins in the model's layers, of a script that made them; (): as above."""
    homes: tuple[int, ...] = ()
    """Of ``in_turn``: the rank of each stage, as often as the model comes by."""
    num_layers_in_first_pipeline_stage: int | None = None
    """Blocks of the first rank; this and what follows by Megatron-LM's names."""
    num_layers_in_last_pipeline_stage: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    """The embedding counts as a block."""
    account_for_loss_in_pipeline_split: bool = False
    """So does the head."""
    microbatch_group_size_per_vp_stage: int | None = None
    """Of the interleaved schedule; None: as many as ranks."""
    overlap_p2p_comm: bool = True
    """Of the interleaved schedule: exchange runs beside compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBlock:
    """``checkpoint``."""

    pipeline_stage: bool = False
    """``parallel_write.pipeline_stage``."""
    use_node_local_storage: bool = False
    load_universal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedConfig:
    """The whole JSON, resolved: no ``"auto"`` left, defaults filled, batch triple completed."""

    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    precision: Precision = "fp32"
    zero: ZeroConfig = field(default_factory=ZeroConfig)
    optimizer: Optimizer | None = None
    """None: the script passes its own."""
    gradient_clipping: float = 1.0
    torch_autocast: Precision | None = None
    """The engine enters ``torch.autocast`` of that type; None: it does not."""
    communication_data_type: Precision | None = None
    """None: fp32 without mixed precision, else the model's dtype."""
    grad_accum_dtype: Precision | None = None
    """None: the model's dtype."""
    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False
    check_grad_overflow: bool = True
    loss_scale: LossScale | None = None
    """None: constant, or not fp16."""
    partition_activations: bool = False
    cpu_checkpointing: bool = False
    checkpoint_buffers: int = 0
    """``number_checkpoints`` where ``contiguous_memory_optimization`` is on."""
    synchronize_checkpoint_boundary: bool = False
    separate_gathers: bool = False
    """Of releases before 0.6, under ZeRO-3."""
    checkpoint: CheckpointBlock = field(default_factory=CheckpointBlock)
    throughput_timer: bool = True
    """``timers.throughput``: ``enabled`` and ``synchronized``."""
    wall_clock_breakdown: bool = False
    """Of ``DeepSpeedEngine``; timers within MoE layers are not priced."""
    tensor_parallel: int = 1
    """``tensor_parallel.autotp_size``."""
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTriple:
    """``train_batch_size = micro x accumulation x data-parallel``, completed as DeepSpeed does."""

    train: int
    micro: int
    accumulation: int


def complete_batch_triple(
    train: int | None, micro: int | None, accumulation: int | None, data_parallel: int
) -> BatchTriple:
    """Fill what is missing of the batch triple, then check it (spec 1.1).

    Source: ``deepspeed/runtime/config.py``, ``_set_batch_related_parameters``.

    Raises
    ------
    ScenarioError
        Neither ``train`` nor ``micro`` is given, or the product does not hold.
    """
    if train is None and micro is None:
        raise ScenarioError(
            "either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"
        )
    given = {"train": train, "micro": micro, "accumulation": accumulation}
    if train is None:
        assert micro is not None
        accumulation = accumulation if accumulation is not None else 1
        train = micro * accumulation * data_parallel
    elif micro is None:
        accumulation = accumulation if accumulation is not None else 1
        micro = train // data_parallel // accumulation if accumulation > 0 else 0
    elif accumulation is None:
        accumulation = train // micro // data_parallel if micro > 0 else 0
    triple = BatchTriple(train=train, micro=micro, accumulation=accumulation)
    sizes = (train, micro, accumulation)
    if min(sizes) <= 0 or train != micro * accumulation * data_parallel:
        raise ScenarioError(
            "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
            f"world_size: {train} != {micro} * {accumulation} * {data_parallel}"
            f"{_would_fit(triple, data_parallel, given)}"
        )
    return triple


def _would_fit(triple: BatchTriple, ranks: int, given: Mapping[str, int | None]) -> str:
    """What to write in place of one number that somebody gave, so that the product holds."""
    said = {name: size for name, size in given.items() if size is not None}
    if min(said.values()) <= 0:
        return "; each is at least 1"
    train, micro, times = triple.train, max(1, triple.micro), max(1, triple.accumulation)
    fits = [f"train_batch_size {micro * times * ranks}"] if "train" in said else []
    for name, key, others in (
        ("accumulation", "gradient_accumulation_steps", micro * ranks),
        ("micro", "train_micro_batch_size_per_gpu", times * ranks),
    ):
        if name in said and train % others == 0:
            fits.append(f"{key} {train // others}")
    if train % (micro * times) == 0:
        fits.append(f"{train // (micro * times)} data-parallel ranks")
    return f"; {' or '.join(fits)} would do"
