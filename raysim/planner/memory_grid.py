"""Will it fit? Peak memory per GPU by ZeRO stage, offload, checkpointing and micro-batch.

Nothing is played: a step is compiled and its allocations go through the emulated allocator, as in a
run. One node group, the model's own layers, DeepSpeed in bf16.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from raysim.errors import Location, Problem, ScenarioError
from raysim.kernel.simulation import collector_at_ease
from raysim.models.huggingface import build, reads
from raysim.scenario.build import build_job
from raysim.scenario.documents import printable
from raysim.scenario.load import Scenario, from_mapping
from raysim.scenario.yaml_text import read_yaml
from raysim.training.memory.need import memory_need
from raysim.units import format_count

CPU = {"device": "cpu", "pin_memory": True}
OFFLOAD = ("none", "optimizer", "all")
OFFLOADS: dict[int, tuple[str, ...]] = {
    0: ("none",), 1: ("none", "optimizer"), 2: ("none", "optimizer"),
    3: ("none", "optimizer", "all"),
}  # fmt: skip
USUAL_SEQ_LEN = 4096
_CONFIG = {"bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
_LENGTHS = ("max_position_embeddings", "n_positions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is asked."""

    config: Path
    """Hugging Face's ``config.json``."""
    node: str = "hgx-h100-8"
    """A name of the catalog; or a file, ``.yaml``, that describes a cluster as a scenario does."""
    nodes: int | None = None
    """None: as the file says, else one."""
    seq_len: int | None = None
    """None: the model's longest, 4,096 at most."""
    stages: Sequence[int] = (0, 1, 2, 3)
    offloads: Sequence[str] = OFFLOAD
    checkpointing: Sequence[str] = ("none", "full")
    micro_batches: Sequence[int] = (1, 4)
    peft: Path | None = None
    """PEFT's ``adapter_config.json``."""


class Cell(NamedTuple):
    """One layout: bytes of the fullest GPU and of a node's host, and what a GPU has."""

    zero_stage: int
    offload: str
    checkpointing: str
    micro_batch: int
    gpu_bytes: int
    host_bytes: int
    capacity_bytes: int
    host_capacity_bytes: int
    why: str = ""
    """It is refused."""

    @property
    def fits(self) -> bool:
        """On GPU and host."""
        return not self.why and (
            self.gpu_bytes <= self.capacity_bytes and self.host_bytes <= self.host_capacity_bytes
        )


def base_of(grid: Grid) -> Scenario:
    """The scenario that every cell changes.

    Raises
    ------
    ScenarioError
        The config or the node is unknown or wrong, or nothing of that name can be offloaded.
    """
    unknown = [o for o in grid.offloads if o not in OFFLOAD]
    if unknown:
        raise ScenarioError(f"--offload {unknown[0]}: give none, optimizer or all")
    seq_len = grid.seq_len or USUAL_SEQ_LEN
    scenario = _scenario(grid, seq_len)
    if grid.seq_len is None:
        longest = _longest(scenario.sources["model", "from"].documents[0].data)
        if 0 < longest < seq_len:
            scenario = _scenario(grid, longest)
    return scenario


def _longest(config: Any) -> int:
    """Tokens that a model has positions for, also where only its family's defaults say; 0: any."""
    if not isinstance(config, Mapping):
        return 0
    said = min((config[k] for k in _LENGTHS if isinstance(config.get(k), int)), default=0)
    if said or not (isinstance(config.get("model_type"), str) and reads(config["model_type"])):
        return said
    try:
        model = build(config)
    except ScenarioError:
        return 0  # said of every cell
    return model.seq_len if model.sample_unit == "tokens" else 0


def model_of(base: Scenario) -> str:
    """The model's size and its samples: ``8.03 B parameters, sequences of 4096``, or ``images``."""
    asked = base.spec.jobs[0].train.seq_len
    try:
        model = build_job(base).plan.model
    except ScenarioError:
        return f"sequences of {asked}"
    sample = f"samples (--seq-len {asked})"
    if model.sample_unit == "tokens":
        sample = f"sequences of {model.seq_len}"
    elif model.sample_unit == "images":
        sample = "images"
    return f"{format_count(model.num_parameters)} parameters, {sample}"


def _scenario(grid: Grid, seq_len: int) -> Scenario:
    train: dict[str, Any] = {
        "deepspeed": _CONFIG, "seq_len": seq_len, "micro_batch": 1,
        "gradient_accumulation_steps": 1, "steps": 1,
    }  # fmt: skip
    if grid.peft is not None:
        train["peft"] = str(grid.peft.resolve())
    said = {"model.from": str(grid.config), "cluster.node": "--node"}
    try:
        made = from_mapping(
            {
                "name": grid.config.stem[:100], "cluster": _cluster(grid),
                "model": {"from": str(grid.config.resolve())}, "jobs": [{"train": train}],
            }
        )  # fmt: skip
    except ScenarioError as error:
        raise ScenarioError(
            [Problem(message=f"{said[p.key]}: {p.message}") if p.key in said else p
             for p in error.problems]
        ) from None  # fmt: skip
    assert isinstance(made, Scenario), "a training job"
    return made


def _cluster(grid: Grid) -> dict[str, Any]:
    """The scenario's section."""
    path = Path(grid.node)
    if path.suffix not in (".yaml", ".yml"):
        return {"node": grid.node, "nodes": 1 if grid.nodes is None else grid.nodes}
    data = read_yaml(path, printable(str(path))).data
    said = data.get("cluster", data) if isinstance(data, dict) else None
    if not isinstance(said, dict) or "node" not in said:
        message = "expected a mapping with node: and, of a GPU that no catalog holds, gpu: {...}"
        raise ScenarioError(Problem(message=message, where=Location(file=printable(str(path)))))
    return said if grid.nodes is None else {**said, "nodes": grid.nodes}


def cells(base: Scenario, grid: Grid) -> Iterator[Cell]:
    """Every layout of the grid, one after the other."""
    gpu = next(g.node.gpu for g in base.cluster.groups if g.node.gpu is not None)
    host = min(g.node.memory_bytes for g in base.cluster.groups if g.node.gpu is not None)
    for stage in grid.stages:
        for offload, checkpointing, micro in itertools.product(
            [o for o in OFFLOADS[stage] if o in grid.offloads], grid.checkpointing,
            grid.micro_batches,
        ):  # fmt: skip
            what = (stage, offload, checkpointing, micro)
            try:
                changed = base.with_(_changes(stage, offload, checkpointing, micro))
                with collector_at_ease():
                    found, on_host = memory_need(build_job(changed).plan, changed.cluster)
            except ScenarioError as error:
                first = error.problems[0]
                why = f"{first.key}: {first.message}" if first.key else first.message
                yield Cell(*what, 0, 0, gpu.memory_bytes, host, why)
            else:
                yield Cell(*what, found, on_host.peak_bytes, gpu.memory_bytes, host)


def _changes(stage: int, offload: str, checkpointing: str, micro: int) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage}
    if offload != "none":
        zero["offload_optimizer"] = CPU
    if offload == "all":
        zero["offload_param"] = CPU
    return {
        "train.deepspeed.zero_optimization": zero,
        "train.activation_checkpointing": checkpointing,
        "train.micro_batch": micro,
    }
