"""A recorded training case as raysim would be asked for it: the same config, the same JSON.

A case is what ``measure.training_rank`` runs: ``{"name", "engine", "ranks", "model", "seq",
"config"}`` with a Hugging Face config and a DeepSpeed JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from raysim.models.huggingface import build
from raysim.models.table import Model
from raysim.scenario.deepspeed_json import ScriptSettings, read_deepspeed
from raysim.scenario.documents import Document
from raysim.training.plan import DdpSettings, TrainingPlan
from raysim.training.settings.deepspeed import Optimizer, PipelineSettings
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh

SHARED = (
    "zero", "communication_data_type", "grad_accum_dtype", "bf16_master_weights_and_grads",
    "bf16_optimizer_states", "check_grad_overflow", "partition_activations", "cpu_checkpointing",
    "gradient_clipping",
)  # fmt: skip
ADAMW = Optimizer(type="AdamW", fused=False)
"""``torch.optim.AdamW`` as the ranks build it unless the JSON names an optimizer."""
CHOSEN = ("fused", "foreach")
"""Its arguments that a case may give."""

HEADS = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "vit": "ViTForImageClassification",
}
"""What ``measure`` builds of families that are not trained on next tokens."""
VERSIONS: dict[str, Literal[1, 2]] = {"fsdp1": 1, "fsdp2": 2}


def model_of(case: Mapping[str, Any]) -> Model:
    """The layer table of the case's config."""
    return build(
        {"dropout": 0.0} | case["model"], seq_len=case["seq"],
        attention=case.get("attention", "sdpa"),
        architecture=HEADS.get(case["model"]["model_type"]),
    )  # fmt: skip


def plan_of(case: Mapping[str, Any], model: Model | None = None) -> TrainingPlan:
    """The plan of a case; ``model`` None: of its Hugging Face config.

    Raises
    ------
    ScenarioError
        The config or the JSON cannot be read.
    """
    config, ranks = case["config"], case["ranks"]
    pipe = case.get("pipeline", {})
    stages = pipe.get("num_stages", 2) if case["engine"] == "pipeline" else 1
    sequence = config.get("sequence_parallel_size", 1)
    shared = {
        "model": model or model_of(case),
        "mesh": Mesh(pp=stages, dp=ranks // stages // sequence, cp=sequence),
        "micro_batch": config["train_micro_batch_size_per_gpu"],
        "gradient_accumulation_steps": config.get("gradient_accumulation_steps", 1),
        "activation_checkpointing": "full" if case.get("checkpoint") else "none",
        "keeps_output": case["engine"] == "deepspeed",  # as the ranks' loop for its engine does
    }
    if case["engine"] in {"ddp", "single"}:
        return TrainingPlan(
            engine="ddp",
            precision="bf16" if "bf16" in config else "fp32",
            optimizer=replace(ADAMW, **{k: case[k] for k in CHOSEN if k in case}),
            gradient_clipping=config.get("gradient_clipping", 1.0),
            ddp=DdpSettings(
                **case.get("ddp", {}), autocast="bf16" if case.get("autocast") else None
            ),
            torch_compile=bool(case.get("compile")),
            **shared,
        )
    if case["engine"] in VERSIONS:
        return TrainingPlan(
            engine="fsdp",
            precision="bf16" if "bf16" in config else "fp32",
            optimizer=replace(ADAMW, **{k: case[k] for k in CHOSEN if k in case}),
            gradient_clipping=config.get("gradient_clipping", 1.0),
            fsdp=FsdpSettings(version=VERSIONS[case["engine"]], **case.get("fsdp", {})),
            **shared,
        )
    document = Document(file=f"{case['name']}.json", data=config)
    script = ScriptSettings(
        data_parallel=ranks // stages // sequence, world=ranks, pipeline_stages=stages,
        optimizer_type=None if "optimizer" in config else ADAMW.type,
        scenario=Document(file=case["name"], data={}),
    )  # fmt: skip
    read = read_deepspeed(document, script).config
    return TrainingPlan(
        engine="deepspeed",
        precision=read.precision,
        optimizer=read.optimizer if "optimizer" in config and read.optimizer else ADAMW,
        pipeline=replace(
            PipelineSettings(stages=stages),
            partition_method=pipe.get("partition_method", "parameters"),
        ),
        **{name: getattr(read, name) for name in SHARED},
        **shared,
    )
