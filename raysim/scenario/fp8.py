"""fp8 training from what users have: ``train.fp8``, Megatron's arguments, Accelerate's file.

Sources: Megatron-LM's ``transformer_config.py`` (``fp8``, ``fp8_recipe`` ...), ``fp8_utils.py``,
``training/arguments.py``; Accelerate 1.14's ``accelerator.py`` (``_prepare_te``, ``_prepare_ao``),
``utils/ao.py``, ``utils/transformer_engine.py``, ``commands/launch.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from raysim.errors import ScenarioError
from raysim.hardware.specs import GpuSpec
from raysim.scenario.documents import Document, KeyPath, shorten, with_prefix
from raysim.scenario.megatron import MegatronSection
from raysim.scenario.problems import problems_of
from raysim.scenario.schema_fp8 import AccelerateFp8Block, Fp8Section
from raysim.training.settings.fp8 import ARCHITECTURES, RECIPES, Fp8Settings, Recipe

ACCELERATE = "fp8_config"


def read_fp8(
    said: Fp8Section | None,
    document: Document,
    gpu: GpuSpec | None,
    compute: str,
    fsdp_version: int,
    found: Fp8Settings | None,
) -> Fp8Settings | None:
    """``train.fp8``, or what FSDP's file says; None: nothing does.

    Parameters
    ----------
    compute
        Type of what is not fp8.
    fsdp_version
        0 without FSDP.
    found
        Accelerate's.

    Raises
    ------
    ScenarioError
        GPU, types or engine do not go with it.
    """
    if said is not None and found is not None:
        message = "Accelerate's file says mixed_precision: fp8; remove one of them"
        raise ScenarioError(document.problem(("fp8",), message, key=True))
    settings = found if said is None else _own(said)
    if settings is None:
        return None
    path: KeyPath = ("fsdp",) if said is None else ("fp8",)
    problems = []
    misfit = _misfit(settings, gpu)
    if misfit is not None:
        problems.append(document.problem(path, misfit))
    if compute == "fp32":
        message = (
            "fp8 products stand between 16-bit tensors: set precision, ddp.autocast or "
            "fsdp.mixed_precision to bf16"
        )
        problems.append(document.problem(path, message))
    if settings.float8_all_gather and fsdp_version != 2:
        message = "needs FSDP2: train.fsdp with version 2"
        problems.append(document.problem((*path, "enable_fsdp_float8_all_gather"), message))
    if problems:
        raise ScenarioError(problems)
    return settings


def _own(said: Fp8Section) -> Fp8Settings:
    return Fp8Settings(
        library=said.library,
        recipe=said.recipe or RECIPES[said.library][0],
        linears=said.linears,
        float8_all_gather=said.enable_fsdp_float8_all_gather,
        precomputes_scales=said.precompute_float8_dynamic_scale_for_fsdp,
    )


def _misfit(settings: Fp8Settings, gpu: GpuSpec | None) -> str | None:
    """Why the GPU does not run the recipe."""
    runs = ARCHITECTURES[settings.recipe]
    if gpu is None or gpu.architecture in runs:
        return None
    names = " or ".join(name.capitalize() for name in runs)
    return f"fp8 recipe {settings.recipe} needs {names}; {gpu.name} is {gpu.architecture}"


def megatron_fp8(
    document: Document,
    said: MegatronSection,
    config: Mapping[str, Any] | None,
    gpu: GpuSpec | None,
) -> Fp8Settings | None:
    """Transformer Engine under Megatron-core; None without ``--fp8-format``.

    Raises
    ------
    ScenarioError
        Arguments that Megatron refuses together, or a recipe that the GPU does not run.
    """
    key = "fp8" if "fp8" in document.data else "fp8_format"
    if said.fp8_format is None and said.fp8 is None:
        if said.fp8_param_gather:
            message = "needs fp8_format: e4m3 or hybrid"
            raise ScenarioError(document.problem(("fp8_param_gather",), message))
        return None
    ends = said.first_last_layers_bf16
    settings = Fp8Settings(
        recipe=said.fp8_recipe,
        classes=(),
        bf16_first=said.num_layers_at_start_in_bf16 if ends else 0,
        bf16_last=said.num_layers_at_end_in_bf16 if ends else 0,
        caches_weights=not said.disable_parameter_transpose_cache,
        keeps_core_output=True,
        primary_weights=said.fp8_param_gather,
        reuses_gradient_buffer=said.reuse_grad_buf_for_mxfp8_param_ag,
    )
    layers = (config or {}).get("num_hidden_layers")
    wrong = list(_refused(said, layers if isinstance(layers, int) else None))
    misfit = _misfit(settings, gpu)
    if misfit is not None:
        wrong.append(("fp8_recipe" if "fp8_recipe" in document.data else key, misfit))
    if wrong:
        raise ScenarioError(document.problem((where or key,), why) for where, why in wrong)
    return settings


def _refused(said: MegatronSection, layers: int | None) -> Iterator[tuple[str, str]]:
    if not (said.bf16 or said.fp16):
        yield "", "fp8 products stand between 16-bit tensors: add bf16"
    if said.first_last_layers_bf16 and said.fp8_recipe == "delayed":
        others = "tensorwise, mxfp8 or blockwise"
        message = f"Megatron refuses it with delayed scaling; use fp8_recipe {others}"
        yield "first_last_layers_bf16", message
    if said.first_last_layers_bf16 and layers is not None:
        most = layers // said.pipeline_model_parallel_size
        for key in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"):
            if getattr(said, key) > most:
                yield key, f"must be at most the {most} layers of a pipeline stage"
    if said.fp8_param_gather and not said.use_distributed_optimizer:
        yield "fp8_param_gather", "needs use_distributed_optimizer"


def accelerate_fp8(document: Document, version: int, *, ram_efficient: bool) -> Fp8Settings:
    """What Accelerate's ``mixed_precision: fp8`` runs under FSDP.

    Transformer Engine in place of every ``torch.nn.Linear``, with delayed scaling or mxfp8; torchao
    in place of all but the first and the last, with fp8 all-gathers and scales computed at once.

    Raises
    ------
    ScenarioError
        A key is unknown, the backend is missing or not simulated, or Accelerate would refuse it.
    """
    prefixed = with_prefix(document, ACCELERATE, "fp8")
    block = prefixed.data.get(ACCELERATE) or {}
    try:
        said = AccelerateFp8Block.model_validate(block)
    except ValidationError as error:
        found = problems_of(error, prefixed, AccelerateFp8Block, prefix=(ACCELERATE,))
        raise ScenarioError(found) from None

    def refuse(key: str, message: str) -> ScenarioError:
        path: KeyPath = (ACCELERATE, key) if key in block else ("mixed_precision",)
        return ScenarioError(prefixed.problem(path, message))

    backend = str(said.fp8_backend or "").upper()
    if backend == "MSAMP":
        raise refuse("fp8_backend", "MS-AMP is not simulated; use TE or AO")
    if backend not in ("TE", "AO"):
        got = f" (got {shorten(said.fp8_backend)})" if backend else ""
        message = (
            "fp8 needs fp8_config with backend TE or AO; without it Accelerate takes what it finds "
            f"installed{got}"
        )
        raise refuse("fp8_backend", message)
    higher = said.fp8_override_linear_precision
    if backend == "TE" and higher not in (None, False) and "true" in str(higher).lower():
        raise refuse(
            "fp8_override_linear_precision", "products in higher precision are not simulated"
        )
    if backend == "TE":
        recipe: Recipe = "mxfp8" if said.fp8_use_mxfp8_block_scaling else "delayed"
        return Fp8Settings(recipe=recipe, linears="all")
    if ram_efficient:
        message = "Accelerate refuses it with torchao; set it to false"
        path: KeyPath = ("fsdp_config", "fsdp_cpu_ram_efficient_loading")
        raise ScenarioError(prefixed.problem(path, message))
    gathers = said.fp8_enable_fsdp_float8_all_gather
    if gathers and version != 2:
        message = "fp8 all-gathers need fsdp_version 2; set it, or this to false"
        raise refuse("fp8_enable_fsdp_float8_all_gather", message)
    return Fp8Settings(
        library="torchao",
        recipe="tensorwise",
        linears="all_but_first_and_last",
        float8_all_gather=gathers,
        precomputes_scales=gathers,
    )
