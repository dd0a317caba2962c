"""``train.fsdp``: raysim's own section, or Accelerate's config file, into ``FsdpSettings``.

A mapping with ``distributed_type`` or ``fsdp_config`` is Accelerate's. Sources: Accelerate 1.14
(``utils/dataclasses.py``, ``FullyShardedDataParallelPlugin``; ``utils/fsdp_utils.py``,
``fsdp2_prepare_model``; ``commands/launch.py``): under mixed precision it keeps parameters in fp32,
without the key it does not prefetch in backward, and with version 2 it wraps the embedding and the
final norm with the head in groups of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from raysim.errors import Problem, ScenarioError
from raysim.scenario.documents import (
    Document,
    KeyPath,
    did_you_mean,
    shorten,
    with_prefix,
)
from raysim.scenario.fp8 import accelerate_fp8
from raysim.scenario.problems import problems_of
from raysim.scenario.schema_fsdp import AccelerateFile, AccelerateFsdpBlock, FsdpSection
from raysim.training.settings.deepspeed import Precision
from raysim.training.settings.fp8 import Fp8Settings
from raysim.training.settings.fsdp import BackwardPrefetch, FsdpSettings, ShardingStrategy

SectionT = TypeVar("SectionT", bound=BaseModel)
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""In the order of Accelerate's numbers, from 1."""
PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
STATE_DICTS = ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")
POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
LEFT_OUT = ("dynamo_config", "deepspeed_config", "megatron_lm_config")
"""Sections that would change the run and are not read with FSDP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpReading:
    """What was read, and what a careful reader would say about it."""

    settings: FsdpSettings
    activation_checkpointing: bool = False
    """Accelerate's file turns it on."""
    upcast: bool = False
    """Parameters are stored in fp32, whatever they were loaded in."""
    hybrid: bool = False
    """Replicas are one per node unless told."""
    fp8: Fp8Settings | None = None
    warnings: list[Problem] = field(default_factory=list)

    def with_replicas(self, count: int) -> FsdpReading:
        """The same with so many replicas."""
        return replace(self, settings=replace(self.settings, replicas=count))


def read_fsdp(document: Document) -> FsdpReading:
    """Settings of a document.

    Raises
    ------
    ScenarioError
        A key or value is wrong, or Accelerate or torch would refuse it.
    """
    data = document.data
    if not isinstance(data, dict):
        message = (
            f"expected Accelerate's config or a mapping of FSDP's settings, got {shorten(data)}"
        )
        raise ScenarioError(document.problem((), message))
    if "fsdp_config" in data or "distributed_type" in data:
        return _accelerate(document)
    said = _validated(document, FsdpSection)
    return _own(said)


def _validated(document: Document, section: type[SectionT]) -> SectionT:
    try:
        return section.model_validate(document.data)
    except ValidationError as error:
        raise ScenarioError(problems_of(error, document, section)) from None


def _own(said: FsdpSection) -> FsdpReading:
    after = said.reshard_after_forward
    prefetch = said.backward_prefetch or "BACKWARD_PRE"
    settings = FsdpSettings(
        version=said.version,
        sharding_strategy=_strategy(said.sharding_strategy or "FULL_SHARD"),
        reshard_after_forward=True if after is None else after,
        root_reshard_after_forward=said.root_reshard_after_forward,
        replicas=said.replicate or 1,
        param_dtype=said.mixed_precision.param_dtype,
        reduce_dtype=said.mixed_precision.reduce_dtype,
        layer_classes=said.transformer_layer_cls,
        min_num_params=said.min_num_params,
        wrap=said.wrap,
        wrap_ends=said.wrap_ends,
        cpu_offload=said.cpu_offload,
        pin_memory=said.pin_memory,
        backward_prefetch=_prefetch(prefetch),
        forward_prefetch=said.forward_prefetch,
        limit_all_gathers=said.limit_all_gathers is not False,
        use_orig_params=bool(said.use_orig_params),
        trained_apart=said.trained_apart is not False,
        sync_every_micro_batch=said.sync_every_micro_batch,
    )
    hybrid = "HYBRID" in settings.sharding_strategy and said.replicate is None
    return FsdpReading(settings=settings, hybrid=hybrid)


def _strategy(name: str) -> ShardingStrategy:
    return cast(ShardingStrategy, "_" + name if name == "HYBRID_SHARD_ZERO2" else name)


def _prefetch(name: str) -> BackwardPrefetch | None:
    return None if name == "NO_PREFETCH" else cast(BackwardPrefetch, name)


def _accelerate(document: Document) -> FsdpReading:
    """As Accelerate's launcher and plugin would understand the file."""
    document = with_prefix(document, "fsdp_config", "fsdp")
    file = _validated(document, AccelerateFile)
    block = file.fsdp_config
    problems = list(_refused(document, file))

    def chosen(key: str, names: tuple[str, ...], default: str) -> str:
        found, problem = _choice(document, key, getattr(block, key), names, default)
        problems.extend(problem)
        return found

    policy = chosen("fsdp_auto_wrap_policy", POLICIES, "NO_WRAP")
    prefetch = chosen("fsdp_backward_prefetch", PREFETCHES, "NO_PREFETCH")
    default = "FULL_STATE_DICT" if block.fsdp_version == 1 else "SHARDED_STATE_DICT"
    state_dict = chosen("fsdp_state_dict_type", STATE_DICTS, default)
    strategy, after = _sharding(document, block, chosen, problems)
    if block.fsdp_version == 2 and policy == "SIZE_BASED_WRAP":
        message = (
            "fully_shard refuses the lists of layers that SIZE_BASED_WRAP hands it; use "
            "TRANSFORMER_BASED_WRAP or fsdp_version 1"
        )
        problems.append(_at(document, "fsdp_auto_wrap_policy", message))
    groups = file.parallelism_config
    replicas = groups.parallelism_config_dp_replicate_size if groups is not None else 1
    if block.fsdp_version == 1 and replicas > 1 and "HYBRID" not in strategy:
        message = f"{strategy} has no replicas; use HYBRID_SHARD or fsdp_version 2"
        problems.append(_at(document, "fsdp_sharding_strategy", message))
    mixed = _mixed(document, file, problems)
    fp8 = None
    if str(file.mixed_precision).lower() == "fp8":
        efficient = block.fsdp_cpu_ram_efficient_loading is not False
        try:
            fp8 = accelerate_fp8(document, block.fsdp_version, ram_efficient=efficient)
        except ScenarioError as error:
            problems.extend(error.problems)
    if problems:
        raise ScenarioError(problems)
    classes = block.fsdp_transformer_layer_cls_to_wrap
    names = classes.split(",") if isinstance(classes, str) else [str(c) for c in classes or ()]
    sized = policy == "SIZE_BASED_WRAP" and block.fsdp_min_num_params > 0
    named = policy == "TRANSFORMER_BASED_WRAP"
    settings = FsdpSettings(
        version=block.fsdp_version,
        sharding_strategy=_strategy(strategy),
        reshard_after_forward=after,
        replicas=replicas,
        param_dtype=mixed,
        reduce_dtype=mixed,
        layer_classes=tuple(n.strip() for n in names if n.strip()) if named else (),
        min_num_params=block.fsdp_min_num_params if sized else None,
        wrap=named or sized,
        wrap_ends=block.fsdp_version == 2,
        cpu_offload=bool(block.fsdp_offload_params),
        backward_prefetch=_prefetch(prefetch) if block.fsdp_version == 1 else "BACKWARD_PRE",
        forward_prefetch=bool(block.fsdp_forward_prefetch) and block.fsdp_version == 1,
        use_orig_params=bool(block.fsdp_use_orig_params) and block.fsdp_version == 1,
        full_state_dict=state_dict == "FULL_STATE_DICT",
    )
    return FsdpReading(
        settings=settings,
        activation_checkpointing=bool(block.fsdp_activation_checkpointing),
        upcast=mixed is not None,
        hybrid="HYBRID" in strategy and block.fsdp_version == 1 and replicas == 1,
        fp8=fp8,
        warnings=list(_warnings(document, file)),
    )


def _at(document: Document, key: str, message: str) -> Problem:
    return document.problem(("fsdp_config", key), message)


def _choice(
    document: Document, key: str, value: Any, names: tuple[str, ...], default: str
) -> tuple[str, list[Problem]]:
    """A name in either case, or its number from 1."""
    if value is None:
        return default, []
    text = str(value).upper()
    if text in names:
        return text, []
    if text.isdecimal() and 1 <= int(text[:3]) <= len(names):
        return names[int(text) - 1], []
    hint = did_you_mean(text, names)
    message = f"must be one of {', '.join(names)}{hint} (got {shorten(value)})"
    return default, [_at(document, key, message)]


def _sharding(
    document: Document,
    block: AccelerateFsdpBlock,
    chosen: Callable[[str, tuple[str, ...], str], str],
    problems: list[Problem],
) -> tuple[str, bool]:
    """Strategy of version 1, or whether version 2 frees after forward."""
    after = block.fsdp_reshard_after_forward
    if block.fsdp_version == 1:
        # fsdp_sharding_strategy has a default in the launcher, so the other key is never read.
        return chosen("fsdp_sharding_strategy", STRATEGIES, "FULL_SHARD"), True
    words = {"true": True, "false": False}
    if after is None:
        return "FULL_SHARD", True
    found = words.get(str(after).lower())
    if found is None:
        message = f"must be true or false with fsdp_version 2 (got {shorten(after)})"
        problems.append(_at(document, "fsdp_reshard_after_forward", message))
    return "FULL_SHARD", found is not False


def _mixed(document: Document, file: AccelerateFile, problems: list[Problem]) -> Precision | None:
    """``mixed_precision`` is the type of parameters and reductions alike."""
    value = "no" if file.mixed_precision in (None, False) else str(file.mixed_precision).lower()
    if value in {"fp16", "bf16"}:
        return cast(Precision, value)
    if value == "fp8":  # what is not a linear's product runs in bf16
        return "bf16"
    if value != "no":
        message = f"must be no, fp16, bf16 or fp8 (got {shorten(value)})"
        problems.append(document.problem(("mixed_precision",), message))
    return None


def _refused(document: Document, file: AccelerateFile) -> Iterator[Problem]:
    if file.distributed_type != "FSDP":
        message = f"must be FSDP for train.fsdp (got {shorten(file.distributed_type)})"
        yield document.problem(("distributed_type",), message)
    groups = file.parallelism_config
    for key in ("tp_size", "cp_size"):
        path: KeyPath = ("parallelism_config", f"parallelism_config_{key}")
        if groups is not None and getattr(groups, str(path[1])) > 1:
            yield document.problem(path, "is not simulated with Accelerate's FSDP; use 1")
    if file.fsdp_config.fsdp_ignored_modules is not None:
        yield _at(document, "fsdp_ignored_modules", "is not simulated; remove it")


def _warnings(document: Document, file: AccelerateFile) -> Iterator[Problem]:
    block = document.data["fsdp_config"]
    if file.fsdp_config.fsdp_version == 2:
        for key in ("fsdp_sharding_strategy", "fsdp_backward_prefetch", "fsdp_forward_prefetch"):
            if block.get(key) not in (None, False):
                yield _at(document, key, "has no effect with fsdp_version 2")
    elif block.get("fsdp_reshard_after_forward") is not None:
        key = "fsdp_reshard_after_forward"
        yield _at(
            document, key, "has no effect with fsdp_version 1: fsdp_sharding_strategy decides"
        )
    for name in LEFT_OUT:
        if getattr(file, name):
            yield document.problem((name,), "is not simulated with FSDP", key=True)
