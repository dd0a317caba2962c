"""Megatron-LM's arguments, as its ``arguments.py`` names them: what a job runs with.

From a launch script, unmodified, or as a mapping in the scenario. Arguments that change neither
time nor memory are let through; those that do and are not simulated become warnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from raysim.errors import Problem, ScenarioError
from raysim.scenario.arguments import unknown_variable
from raysim.scenario.documents import Document, shorten
from raysim.scenario.problems import problems_of
from raysim.scenario.quantities import PositiveCount
from raysim.scenario.section import Section
from raysim.training.layers.recompute import MODULES
from raysim.training.layers.sharding import ContextExchange, TokenDispatcher
from raysim.training.pipeline.pipelines import misfits
from raysim.training.plan import MegatronSettings
from raysim.training.settings.deepspeed import PipelineSettings, Precision, ScheduleName

DEGREE_MAX = 1_000_000
NOT_SIMULATED = {
    "no_fp8_wgrad": "weight gradients in 16 bits beside fp8 products",
    "fp8_dot_product_attention": "fp8 attention",
    "fp8_multi_head_attention": "fp8 attention",
    "fp8_output_proj": "the output layer in fp8",
    "activation_func_fp8_input_store": "activations' inputs kept in fp8",
    "fp4_format": "fp4 products",
    "enable_optimizer_post_validation": "an optimizer that steps before ranks have met",
    "enable_1f1b_v": "1F1B in a V",
    "interleave_group_size": "grouped interleaving with offload",
    "tp_comm_overlap_cfg": "other methods and SMs of user buffers than Transformer Engine's own",
    "tp_comm_overlap_rs_dgrad": "input gradients scattered beside their own product",
    "disable_tp_comm_overlap_ag": "user buffers without all of their overlap",
    "disable_tp_comm_overlap_rs": "user buffers without all of their overlap",
    "disable_tp_comm_bulk_dgrad": "user buffers without all of their overlap",
    "disable_tp_comm_bulk_wgrad": "user buffers without all of their overlap",
    "optimizer_cpu_offload": "the optimizer on the CPU",
    "overlap_moe_expert_parallel_comm": "overlapped token exchanges",
    "use_precision_aware_optimizer": "low-precision optimizer states",
    "use_torch_fsdp2": "FSDP2 under Megatron",
    "use_megatron_fsdp": "Megatron's own FSDP",
    "enable_cuda_graph": "CUDA graphs",
    "moe_shared_expert_overlap": "the shared expert beside the token exchange",
    "mtp_num_layers": "multi-token prediction",
    "hierarchical_context_parallel_sizes": "hierarchical context parallelism",
}
"""Arguments that change time or memory and are not read, with what is missing."""


class MegatronSection(Section):
    """The arguments that are read; all others are kept and have no effect."""

    model_config = ConfigDict(extra="ignore")

    tensor_model_parallel_size: int = Field(1, ge=1, le=DEGREE_MAX)
    pipeline_model_parallel_size: int = Field(1, ge=1, le=DEGREE_MAX)
    context_parallel_size: int = Field(1, ge=1, le=DEGREE_MAX)
    expert_model_parallel_size: int = Field(1, ge=1, le=DEGREE_MAX)
    expert_tensor_parallel_size: int | None = Field(None, ge=1, le=DEGREE_MAX)
    sequence_parallel: bool = False
    tp_comm_overlap: bool = False
    cp_comm_type: ContextExchange = "p2p"
    use_distributed_optimizer: bool = False
    num_distributed_optimizer_instances: int = Field(1, ge=1, le=DEGREE_MAX)
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    ddp_bucket_size: PositiveCount | None = None
    ddp_average_in_collective: bool = False
    grad_reduce_in_bf16: bool = False
    accumulate_allreduce_grads_in_fp32: bool = False
    defer_embedding_wgrad_compute: bool = False
    wgrad_deferral_limit: int = Field(0, ge=0, le=DEGREE_MAX)
    no_gradient_accumulation_fusion: bool = False
    num_virtual_stages_per_pipeline_rank: int | None = Field(None, ge=1, le=DEGREE_MAX)
    num_layers_per_virtual_pipeline_stage: int | None = Field(None, ge=1, le=DEGREE_MAX)
    microbatch_group_size_per_virtual_pipeline_stage: int | None = Field(None, ge=1, le=DEGREE_MAX)
    no_overlap_p2p_communication: bool = False
    decoder_first_pipeline_num_layers: int | None = Field(None, ge=1, le=DEGREE_MAX)
    decoder_last_pipeline_num_layers: int | None = Field(None, ge=1, le=DEGREE_MAX)
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    micro_batch_size: PositiveCount | None = None
    global_batch_size: PositiveCount | None = None
    seq_length: PositiveCount | None = None
    bf16: bool = False
    fp16: bool = False
    enable_zero_bubble: bool = False
    zero_bubble_v_schedule: bool = False
    zero_bubble_v_schedule_mem_setup: Literal["zb", "half", "min"] = "zb"
    zero_bubble_max_pending_backward: int | Literal["auto"] = "auto"
    """The last four are of the papers' fork, sail-sg/zero-bubble-pipeline-parallelism."""
    fp8_format: Literal["e4m3", "hybrid"] | None = None
    fp8: Literal["e4m3", "hybrid"] | None = None
    """The name of ``fp8_format`` in ``TransformerConfig``."""
    fp8_recipe: Literal["delayed", "tensorwise", "mxfp8", "blockwise"] = "delayed"
    fp8_param_gather: bool = False
    reuse_grad_buf_for_mxfp8_param_ag: bool = False
    disable_parameter_transpose_cache: bool = False
    first_last_layers_bf16: bool = False
    num_layers_at_start_in_bf16: int = Field(1, ge=0, le=DEGREE_MAX)
    num_layers_at_end_in_bf16: int = Field(1, ge=0, le=DEGREE_MAX)
    recompute_granularity: Literal["full", "selective"] | None = None
    recompute_modules: list[str] | str = "core_attn"
    recompute_activations: bool = False
    """Short for ``recompute_granularity selective``."""
    recompute_method: Literal["uniform", "block"] | None = None
    recompute_num_layers: int | None = Field(None, ge=0, le=DEGREE_MAX)
    moe_token_dispatcher_type: str = "alltoall"  # noqa: S105  (no secret)
    cross_entropy_loss_fusion: bool = False
    make_vocab_size_divisible_by: int = Field(128, ge=1, le=2**20)
    clip_grad: float = Field(1.0, ge=0)
    optimizer: str = "adam"
    loss_scale: float | None = Field(None, gt=0)
    """Of fp16, constant; None: dynamic."""
    initial_loss_scale: float = Field(2.0**32, gt=0, le=2.0**64)
    loss_scale_window: PositiveCount = 1000
    hysteresis: PositiveCount = 2
    ckpt_format: Literal["torch", "torch_dist"] = "torch_dist"
    async_save: bool = False

    @model_validator(mode="after")
    def _as_megatron_checks(self) -> MegatronSection:
        if self.bf16 and self.fp16:
            raise ValueError("give bf16 or fp16, not both")
        if self.overlap_param_gather and not self.use_distributed_optimizer:
            raise ValueError("overlap_param_gather needs use_distributed_optimizer")
        if self.num_distributed_optimizer_instances > 1 and not self.use_distributed_optimizer:
            raise ValueError("num_distributed_optimizer_instances needs use_distributed_optimizer")
        if self.overlap_param_gather and not self.overlap_grad_reduce:
            raise ValueError("overlap_param_gather needs overlap_grad_reduce")
        if self.defer_embedding_wgrad_compute and self.pipeline_model_parallel_size == 1:
            raise ValueError("defer_embedding_wgrad_compute needs pipeline_model_parallel_size > 1")
        if self.tp_comm_overlap and not self.sequence_parallel:
            raise ValueError("tp_comm_overlap needs sequence_parallel")
        if self.expert_tensor_parallel_size not in (None, self.tensor_model_parallel_size):
            raise ValueError(
                "expert_tensor_parallel_size other than tensor_model_parallel_size is not simulated"
            )
        if self.num_virtual_stages_per_pipeline_rank and self.num_layers_per_virtual_pipeline_stage:
            raise ValueError(
                "give num_virtual_stages_per_pipeline_rank or "
                "num_layers_per_virtual_pipeline_stage, not both"
            )
        moe = self.expert_model_parallel_size > 1
        if moe and self.tensor_model_parallel_size > 1 and not self.sequence_parallel:
            raise ValueError("experts with tensor parallelism need sequence_parallel in Megatron")
        return self


_OWN_NAMES = {
    "virtual_stages": "num_virtual_stages_per_pipeline_rank",
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
}
"""Keys of ``PipelineSettings`` that Megatron's command line calls differently."""


def megatron_pipeline(
    document: Document,
    said: MegatronSection,
    config: Mapping[str, Any] | None,
    micro_batches: int,
) -> PipelineSettings:
    """Megatron's schedule and split: interleaved where a rank has several stages.

    Raises
    ------
    ScenarioError
        The layers cannot be split so, or the schedule does not take so many micro-batches.
    """
    ranks = said.pipeline_model_parallel_size
    layers = (config or {}).get("num_hidden_layers")
    chunks = said.num_virtual_stages_per_pipeline_rank or 1
    each = said.num_layers_per_virtual_pipeline_stage
    if each is not None and isinstance(layers, int):
        chunks, left = divmod(layers, ranks * each)
        if left:
            key = ("num_layers_per_virtual_pipeline_stage",)
            message = f"{layers} layers are not divisible by {ranks} stages x {each}"
            raise ScenarioError(document.problem(key, message))
    zero_bubble = said.enable_zero_bubble or said.zero_bubble_v_schedule
    plain: ScheduleName = "interleaved" if chunks > 1 else "megatron_1f1b"
    settings = PipelineSettings(
        stages=ranks,
        partition_method="blocks",
        pipe_partitioned=False,
        grad_partitioned=False,
        schedule=_zero_bubble(document, said) if zero_bubble and ranks > 1 else plain,
        virtual_stages=chunks if chunks > 1 else None,
        num_layers_in_first_pipeline_stage=said.decoder_first_pipeline_num_layers,
        num_layers_in_last_pipeline_stage=said.decoder_last_pipeline_num_layers,
        account_for_embedding_in_pipeline_split=said.account_for_embedding_in_pipeline_split,
        account_for_loss_in_pipeline_split=said.account_for_loss_in_pipeline_split,
        microbatch_group_size_per_vp_stage=said.microbatch_group_size_per_virtual_pipeline_stage,
        overlap_p2p_comm=not said.no_overlap_p2p_communication,
    )
    wrong = list(misfits(settings, ranks, micro_batches)) if ranks > 1 else []
    if wrong:
        raise ScenarioError(
            document.problem((_OWN_NAMES.get(key, key),), message) for key, message in wrong
        )
    return settings


def _zero_bubble(document: Document, said: MegatronSection) -> ScheduleName:
    """The fork's schedule: by its V's memory, or by how many backward passes may be pending.

    ``auto`` measures what memory allows; ZB-H2's two per stage are taken, where it has enough.
    """
    if said.zero_bubble_v_schedule:
        names: dict[str, ScheduleName] = {"zb": "zb_v", "half": "v_half", "min": "v_min"}
        return names[said.zero_bubble_v_schedule_mem_setup]
    ranks, pending = said.pipeline_model_parallel_size, said.zero_bubble_max_pending_backward
    if pending == ranks:
        return "zb_h1"
    if pending in ("auto", 2 * ranks):
        return "zb_h2"
    message = f"{pending} is not simulated; use {ranks} (ZB-H1) or {2 * ranks} (ZB-H2)"
    raise ScenarioError(document.problem(("zero_bubble_max_pending_backward",), message))


@dataclass(slots=True)
class MegatronReading:
    """The arguments as raysim's settings."""

    section: MegatronSection
    settings: MegatronSettings
    precision: Precision
    recompute: Literal["none", "selective", "full"]
    recompute_layers: int | None
    """Of each stage, from its first; None: all."""
    warnings: list[Problem] = field(default_factory=list)


def read_megatron(document: Document) -> MegatronReading:
    """What Megatron-LM would run with.

    Raises
    ------
    ScenarioError
        A value has the wrong type, contradicts another, or is a variable the script does not set.
    """
    if not isinstance(document.data, dict):
        message = f"expected a mapping of Megatron's arguments, got {shorten(document.data)}"
        raise ScenarioError(document.problem((), message))
    unknown = list(_unknown_values(document))
    if unknown:
        raise ScenarioError(unknown)
    data = {key: value for key, value in document.data.items() if key in _READ}
    try:
        section = MegatronSection.model_validate(data)
    except ValidationError as error:
        raise ScenarioError(problems_of(error, document, MegatronSection)) from None
    precision: Precision = "bf16" if section.bf16 else "fp16" if section.fp16 else "fp32"
    granularity = section.recompute_granularity
    if granularity is None and section.recompute_activations:
        granularity = "selective"
    named = section.recompute_modules
    modules = (named,) if isinstance(named, str) else tuple(named)
    layers = section.recompute_num_layers if section.recompute_method == "block" else None
    reading = MegatronReading(
        section=section,
        settings=MegatronSettings(
            sequence_parallel=section.sequence_parallel,
            tp_comm_overlap=section.tp_comm_overlap,
            cp_comm_type=section.cp_comm_type,
            use_distributed_optimizer=section.use_distributed_optimizer,
            num_distributed_optimizer_instances=section.num_distributed_optimizer_instances,
            overlap_grad_reduce=section.overlap_grad_reduce,
            overlap_param_gather=section.overlap_param_gather,
            accumulate_allreduce_grads_in_fp32=section.accumulate_allreduce_grads_in_fp32
            or (section.bf16 and not section.grad_reduce_in_bf16),
            ddp_average_in_collective=section.ddp_average_in_collective,
            gradient_accumulation_fusion=not section.no_gradient_accumulation_fusion,
            ddp_bucket_size=section.ddp_bucket_size,
            defer_embedding_wgrad_compute=section.defer_embedding_wgrad_compute,
            wgrad_deferral_limit=section.wgrad_deferral_limit,
            moe_token_dispatcher=_dispatcher(section),
            recompute_modules=modules,
        ),
        precision=precision,
        recompute=granularity or "none",
        recompute_layers=layers if granularity == "full" else None,
        warnings=list(_not_simulated(document)),
    )
    uniform = section.recompute_method == "uniform" and (section.recompute_num_layers or 1) > 1
    if granularity == "full" and uniform:
        message = "every layer is its own checkpoint here, not a group of them"
        reading.warnings.append(document.problem(("recompute_num_layers",), message))
    other = [name for name in modules if name not in {"core_attn", *MODULES}]
    if granularity == "selective" and other:
        known = ", ".join(("core_attn", *MODULES))
        message = f"not simulated: recomputing {', '.join(other)}; simulated are {known}"
        reading.warnings.append(document.problem(("recompute_modules",), message))
    return reading


def _dispatcher(section: MegatronSection) -> TokenDispatcher:
    """Other types than ``flex`` are played as all-to-all."""
    flex = section.moe_token_dispatcher_type == "flex"  # noqa: S105  (no secret)
    return "flex" if flex else "alltoall"


_READ = tuple(MegatronSection.model_fields)


def _unknown_values(document: Document) -> Iterator[Problem]:
    """Arguments read from variables that the script gets from elsewhere."""
    for key in _READ:
        values: Any = document.data.get(key)
        for value in values if isinstance(values, list) else [values]:
            name = unknown_variable(value)
            if name is not None:
                message = (
                    f"the script does not say what {name} is; write {name}=... into it, or give "
                    "the arguments under `megatron:` in the scenario"
                )
                yield document.problem((key,), message)


def _not_simulated(document: Document) -> Iterator[Problem]:
    for key, what in NOT_SIMULATED.items():
        value = document.data.get(key)
        if value not in (None, False) and unknown_variable(value) is None:
            yield document.problem((key,), f"not simulated: {what}", key=True)
