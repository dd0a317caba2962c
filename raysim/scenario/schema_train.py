"""The ``train`` job: what the training script's own files and arguments say."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from raysim.scenario.quantities import Bytes, BytesPerSecond, Count, PositiveCount, Seconds
from raysim.scenario.schema_fp8 import Fp8Section
from raysim.scenario.schema_machines import Every, FailuresSection, NoiseSection
from raysim.scenario.schema_peft import QuantizationSection
from raysim.scenario.section import FileOrMapping, Section, shorthand
from raysim.training.allocator.config import read_allocator
from raysim.training.layers.recompute import Checkpointing
from raysim.training.settings.deepspeed import ScheduleName

WORKERS_MAX = 1_000_000


class OptimizerSection(Section):
    """The optimizer the script builds itself."""

    type: str = Field("AdamW", description="Class name: Adam, AdamW, SGD, Lion, Adagrad, Muon ...")
    lr: float = Field(1e-3, ge=0, description="Learning rate; no effect on time or memory.")
    fused: bool = Field(True, description="One fused kernel per step, or torch's foreach kernels.")
    momentum: float = Field(0.0, ge=0, description="Of SGD: above 0, a momentum buffer exists.")


class DdpSection(Section):
    """Arguments of torch's DistributedDataParallel."""

    bucket_cap_mb: float = Field(25.0, gt=0, le=1e6, description="Gradient bucket size in MiB.")
    gradient_as_bucket_view: bool = Field(
        False, description="Gradients live in the buckets: no second copy."
    )
    autocast: Literal["fp16", "bf16"] | None = Field(
        None, description="torch.autocast type; parameters stay fp32."
    )


def _partition_method(value: Any) -> Any:
    """PipelineModule's methods (``runtime/pipe/module.py``); the expression must compile."""
    low = value.lower() if isinstance(value, str) else ""
    if low in ("uniform", "parameters") or (low.startswith("type:") and len(low) > 5):
        try:
            re.compile(low[5:])
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value
    raise ValueError(f"expected uniform, parameters or type:REGEX, got {value!r}")


class PipelineSection(Section):
    """PipelineModule's constructor arguments; without DeepSpeed, Megatron-LM's by its names."""

    stages: int = Field(1, ge=1, le=10_000, description="num_stages: ranks of the pipeline.")
    partition_method: Annotated[str, BeforeValidator(_partition_method)] | None = Field(
        None,
        description="uniform, parameters or type:REGEX; by default parameters with DeepSpeed, "
        "else as many blocks on every stage.",
    )
    activation_checkpoint_interval: int = Field(
        0, ge=0, description="Recompute every so many layers; 0: keep all activations."
    )
    schedule: ScheduleName | None = Field(
        None, description="Order of passes: DeepSpeed's is 1f1b, the others run without its JSON."
    )
    virtual_stages: int | None = Field(
        None, ge=1, le=1000, description="Stages (model chunks) per rank, of interleaved and zb_h1."
    )
    layers_per_stage: list[Annotated[int, Field(ge=0, le=100_000)]] | None = Field(
        None, max_length=10_000, description="Blocks of every stage, in the model's order."
    )
    num_layers_in_first_pipeline_stage: int | None = Field(
        None, ge=0, le=100_000, description="Blocks of the first rank."
    )
    num_layers_in_last_pipeline_stage: int | None = Field(
        None, ge=0, le=100_000, description="Blocks of the last rank."
    )
    account_for_embedding_in_pipeline_split: bool = Field(
        False, description="The embedding counts as a block."
    )
    account_for_loss_in_pipeline_split: bool = Field(
        False, description="The head counts as a block."
    )
    microbatch_group_size_per_vp_stage: int | None = Field(
        None, ge=1, le=10**9,
        description="Micro-batches that pass a chunk before the next, of interleaved.",
    )  # fmt: skip
    overlap_p2p_comm: bool = Field(
        True, description="Exchange between stages runs beside compute, of interleaved."
    )


class DataSection(Section):
    """Where samples come from and what they cost."""

    train_samples: PositiveCount | None = Field(None, description="Samples in one epoch.")
    eval_samples: Count = Field(0, description="Samples evaluated after each epoch.")
    eval_batch_per_gpu: PositiveCount | None = Field(
        None, description="Evaluation batch per GPU; by default the training micro-batch."
    )
    cpu_time_per_sample: Seconds = Field(
        0.0, description="Decode and transform of one sample on one vCPU."
    )
    loader_workers: int = Field(0, ge=0, le=1024, description="Loader processes per GPU.")
    bytes_per_sample: Annotated[float, Field(ge=0, le=1e15)] | None = Field(
        None, description="Bytes copied to the GPU per sample; by default from the model's input."
    )
    bytes_per_token: Annotated[float, Field(ge=0, le=1e9)] | None = Field(
        None, description="Stored bytes per token; reading from storage is not simulated yet."
    )
    dataset: str | None = Field(None, description="Name, for the report.")
    read_from: str | None = Field(
        None, description="Where it is stored; reading from storage is not simulated yet."
    )


class StorageSection(Section):
    """Where checkpoints are: a bucket by name, or a shared file system by its rates."""

    name: str | None = Field(
        None, description="disk: each node's first; or a bucket service: s3, gcs, azure-blob."
    )
    write: BytesPerSecond | None = Field(
        None, gt=0, description="What all nodes together write, such as 58GB/s."
    )
    read: BytesPerSecond | None = Field(
        None, gt=0, description="What all nodes together read; by default as written."
    )
    write_per_node: BytesPerSecond | None = Field(
        None, gt=0, description="What one node writes; by default what its host NIC carries."
    )
    read_per_node: BytesPerSecond | None = Field(
        None, gt=0, description="What one node reads; by default what its host NIC carries."
    )

    @model_validator(mode="after")
    def _named_or_rated(self) -> StorageSection:
        rates = [n for n in ("write", "read", "write_per_node", "read_per_node")
                 if getattr(self, n) is not None]  # fmt: skip
        if rates and self.name is not None:
            raise ValueError(f"a name has rates of its own; remove it, or {', '.join(rates)}")
        if self.name is None and self.write is None:
            raise ValueError("needs a name (disk, s3, gcs, azure-blob) or write, such as 58GB/s")
        return self


class CheckpointSection(Section):
    """When the model is saved."""

    every_epoch: bool = Field(False, description="After each epoch.")
    every: Every | None = Field(
        None,
        description="Time between checkpoints, such as 30min; optimal: what makes a run with "
        "`failures` shortest.",
    )
    every_steps: PositiveCount | None = Field(None, description="Steps between checkpoints.")
    kind: Literal["model", "full"] = Field(
        "full", description="model: low-precision weights; full: optimizer state as well."
    )
    asynchronous: bool = Field(
        False, alias="async",
        description="Training goes on once the state is in main memory; the rest is written "
        "beside it.",
    )  # fmt: skip
    storage: Annotated[StorageSection, shorthand("name")] | None = Field(
        None, description="Where to: disk (by default each node's first), s3, or a shared store."
    )
    state_dict: Literal["sharded", "full"] | None = Field(
        None, description="Of FSDP: every rank writes its own, or rank 0 collects all of it."
    )


class ReferenceSection(Section):
    """What a real run measured, to compare the prediction with."""

    source: str | None = Field(None, description="Where the measurement is from.")
    gpu: str | None = Field(None, description="GPU it ran on, when known.")
    epoch_seconds: float | None = Field(None, gt=0, description="Seconds per steady epoch.")
    total_seconds: float | None = Field(None, gt=0, description="Seconds in all, with start-up.")
    step_seconds: float | None = Field(None, gt=0, description="Seconds per optimizer step.")
    tokens_per_s: float | None = Field(None, gt=0, description="Tokens per second, all GPUs.")
    tokens_per_s_per_gpu: float | None = Field(None, gt=0, description="Tokens per second and GPU.")
    samples_per_s: float | None = Field(None, gt=0, description="Samples per second, all GPUs.")
    model_flops_per_s_per_gpu: float | None = Field(None, gt=0, description="Model FLOP/s and GPU.")
    mfu: float | None = Field(None, gt=0, le=1, description="Model FLOP utilisation.")
    memory_peak: Bytes | None = Field(None, description="Peak memory of the fullest GPU.")


def _allocator(value: Any) -> Any:
    """``PYTORCH_CUDA_ALLOC_CONF`` as it stands, or its keys as a mapping; torch must take it."""
    if not isinstance(value, (str, dict)):
        raise ValueError(f"expected the text of PYTORCH_CUDA_ALLOC_CONF or its keys, got {value!r}")
    read_allocator(value)
    return value


Allocator = Annotated[
    Any, BeforeValidator(_allocator), WithJsonSchema({"type": ["string", "object"]})
]


class TrainSection(Section):
    """One training job: `TorchTrainer`, `deepspeed` or `torchrun`."""

    deepspeed: FileOrMapping | None = Field(
        None,
        description='DeepSpeed\'s JSON, unmodified (comments and "auto" allowed), or in place, or '
        "Accelerate's config.",
    )
    deepspeed_version: str | None = Field(
        None, pattern=r"^\d{1,3}\.\d{1,3}(\.\d{1,3})?$",
        description="Release of DeepSpeed that reads its JSON, by default 0.19.8; MiCS, 1-bit "
        "optimizers and features removed with them need one before 0.19.7. Only what it refuses, "
        "the default of gradient_clipping and how ZeRO-3 gathers before 0.6 depend on it.",
    )  # fmt: skip
    megatron: FileOrMapping | None = Field(
        None, description="Megatron-LM's launch script, unmodified, or its arguments in place."
    )
    fsdp: FileOrMapping | None = Field(
        None,
        description="Accelerate's config, unmodified, or FSDP's settings: version, "
        "reshard_after_forward, mixed_precision ...",
    )
    engine: Literal["ddp", "fsdp", "deepspeed", "megatron"] | None = Field(
        None,
        description="By default what there are settings of: deepspeed, megatron, fsdp; else ddp.",
    )
    launcher: Literal["script", "hf_trainer"] = Field(
        "script", description='hf_trainer: the Hugging Face Trainer fills "auto" values.'
    )
    ddp: DdpSection = Field(default_factory=DdpSection, description="DistributedDataParallel.")
    optimizer: Annotated[OptimizerSection, shorthand("type")] | None = Field(
        None, description="The script's optimizer, when DeepSpeed's JSON has none."
    )
    seq_len: PositiveCount | None = Field(
        None, le=10**9, description="Tokens per sample; by default the model's maximum."
    )
    micro_batch: PositiveCount | None = Field(
        None, le=10**9, description="Samples per GPU and micro-step."
    )
    gradient_accumulation_steps: PositiveCount | None = Field(
        None, le=10**9, description="Micro-steps per optimizer step."
    )
    global_batch: PositiveCount | None = Field(None, description="Samples per optimizer step.")
    global_batch_tokens: PositiveCount | None = Field(
        None, description="Tokens per optimizer step: global_batch times seq_len."
    )
    tokens: PositiveCount | None = Field(None, description="Tokens to train on in all.")
    steps: PositiveCount | None = Field(None, description="Optimizer steps in all.")
    epochs: PositiveCount | None = Field(
        None, le=10**6, description="Passes over data.train_samples."
    )
    activation_checkpointing: Checkpointing = Field(
        "none",
        description="full: every block is recomputed in backward; selective: attention cores only; "
        "op: all but attention cores and every second product, as in torchtitan.",
    )
    torch_compile: bool = Field(False, description="The model goes through torch.compile.")
    cuda_graphs: bool = Field(
        False, description="Forward and backward are replayed from CUDA graphs."
    )
    launch_blocking: bool | None = Field(
        None,
        description="CUDA_LAUNCH_BLOCKING=1, the host waits for every kernel; by default what the "
        "cluster file's containers set.",
    )
    omp_num_threads: PositiveCount | None = Field(
        None, le=100_000,
        description="OMP_NUM_THREADS of each rank, for an optimizer in main memory; by default "
        "what the cluster file's containers set, else what Ray gives a worker: its CPUs, 1 if it "
        "has none. torchrun and accelerate give 1, the deepspeed launcher every core.",
    )  # fmt: skip
    bind_cores_to_rank: bool | None = Field(
        None, description="Of the deepspeed launcher: each rank has cores of its own, all used."
    )
    expert_imbalance: float = Field(
        1.0, ge=1, le=1000, description="Rows of the most loaded routed expert over the mean."
    )
    workers: int | None = Field(
        None, ge=1, le=WORKERS_MAX, description="Ranks, one per GPU; by default every GPU there is."
    )
    tensor_parallel: int | None = Field(
        None, ge=1, le=WORKERS_MAX, description="Tensor-parallel degree."
    )
    pipeline: PipelineSection | None = Field(None, description="Pipeline parallelism.")
    precision: Literal["fp32", "fp16", "bf16"] | None = Field(
        None, description="Type of weights and activations; by default what DeepSpeed's JSON says."
    )
    peft: FileOrMapping | None = Field(
        None,
        description="PEFT's adapter_config.json (LoRA), unmodified, or LoraConfig's fields: r, "
        "target_modules, lora_dropout, modules_to_save ...; all else is frozen.",
    )
    quantization: QuantizationSection | None = Field(
        None, description="BitsAndBytesConfig of a model in 4 bits (QLoRA)."
    )
    fp8: Annotated[Fp8Section, shorthand("recipe")] | None = Field(
        None,
        description="Products of linear layers in fp8; Megatron's arguments and Accelerate's file "
        "say so themselves.",
    )
    gradient_clipping: float | None = Field(
        None, ge=0, le=1e9, description="Of a script without DeepSpeed: norm to clip to; 0: none."
    )
    allocator: Allocator | None = Field(
        None,
        description="PYTORCH_CUDA_ALLOC_CONF, unmodified, or its keys: expandable_segments, "
        "max_split_size_mb, garbage_collection_threshold, roundup_power2_divisions ...; by default "
        "what the cluster file's containers set.",
    )
    auto: dict[str, Any] = Field(
        default_factory=dict,
        description='Values for "auto" in DeepSpeed\'s JSON, by key or dotted key.',
    )
    data: DataSection = Field(default_factory=DataSection, description="Samples and their cost.")
    checkpoint: CheckpointSection = Field(
        default_factory=CheckpointSection, description="When the model is saved."
    )
    checkpoint_every: Every | None = Field(None, description="Short for checkpoint.every.")
    noise: NoiseSection | None = Field(
        None, description="How the machines differ: spread, jitter, slow nodes, bad links."
    )
    failures: FailuresSection | None = Field(
        None, description="What stops the job, and how it goes on; goodput follows."
    )
    stable_scale_power: int | None = Field(
        None, ge=0, le=64,
        description="Of fp16 with a dynamic loss scale: the largest scale, as a power of two, at "
        "which gradients do not overflow; by default 15.",
    )  # fmt: skip
    resume: bool = Field(
        False,
        description="The job goes on from a checkpoint, which it loads before its first step.",
    )
    exact: bool = Field(
        False, description="Simulate every rank instead of one per class of symmetric ranks."
    )
    reference: ReferenceSection | None = Field(
        None, description="A measurement to compare the prediction with."
    )

    @model_validator(mode="after")
    def _threads_said_once(self) -> TrainSection:
        if self.bind_cores_to_rank and self.omp_num_threads is not None:
            raise ValueError("bind_cores_to_rank sets OMP_NUM_THREADS; remove omp_num_threads")
        return self

    @model_validator(mode="after")
    def _no_contradiction(self) -> TrainSection:
        lengths = [n for n in ("tokens", "steps", "epochs") if getattr(self, n) is not None]
        if len(lengths) > 1:
            raise ValueError(f"give one of {', '.join(lengths)}, not {len(lengths)}")
        if self.epochs is not None and self.data.train_samples is None:
            raise ValueError("epochs needs data.train_samples")
        if self.global_batch is not None and self.global_batch_tokens is not None:
            raise ValueError("give global_batch or global_batch_tokens, not both")
        if self.deepspeed is None and self.engine == "deepspeed":
            raise ValueError("engine: deepspeed needs `deepspeed`, its JSON")
        if self.deepspeed is not None and self.engine in ("ddp", "fsdp"):
            raise ValueError(
                f"engine: {self.engine} does not read a DeepSpeed JSON; remove `deepspeed`"
            )
        if self.fsdp is not None and (self.deepspeed is not None or self.engine == "ddp"):
            raise ValueError(
                "`fsdp` is an engine of its own; remove it, or `deepspeed` and `engine`"
            )
        if self.megatron is None and self.engine == "megatron":
            raise ValueError("engine: megatron needs `megatron`, its arguments")
        if self.megatron is not None and self.engine not in (None, "megatron"):
            raise ValueError(f"engine: {self.engine} does not read Megatron's arguments")
        if self.megatron is not None and (self.deepspeed or self.fsdp) is not None:
            raise ValueError("give one of deepspeed, fsdp and megatron")
        if self.deepspeed is None and self.auto:
            raise ValueError("`auto` fills a DeepSpeed JSON; `deepspeed` is missing")
        if self.checkpoint_every is not None and self.checkpoint.every is not None:
            raise ValueError("give checkpoint_every or checkpoint.every, not both")
        return self
