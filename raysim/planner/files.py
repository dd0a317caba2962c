"""What a plan leaves: trials as a table, a summary, and files ready to deploy.

``best/`` holds the scenario of the first choice, DeepSpeed's JSON without any ``"auto"``, the
user's cluster file with the chosen sizes (or a RayCluster, where the scenario had none), and the
commands that start it.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.planner.cluster_files import cluster_file
from raysim.planner.effects import beyond_ends, without_effect
from raysim.planner.importance import importance
from raysim.planner.job_files import ACCELERATE, MEGATRON_ARGS, SERVE, job_files
from raysim.planner.nearest import nearest
from raysim.planner.plan import Answer
from raysim.results.result import yaml_text
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.sources import DEEPSPEED, MEGATRON

if TYPE_CHECKING:
    import pandas as pd

AUTO = "auto"
TOP = 20
"""Trials in the summary; the table has all."""


def write(answer: Answer, folder: Path) -> list[str]:
    """Write all of it; the names written, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    table(answer).to_parquet(folder / "trials.parquet")
    text = json.dumps(summary_of(answer), indent=1, allow_nan=False)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
    chosen = answer.chosen()
    if chosen is None:
        return ["trials.parquet", "summary.json"]
    best = folder / "best"
    best.mkdir(exist_ok=True)
    files = deploy_files(chosen)
    for name, content in files.items():
        (best / name).write_text(content, encoding="utf-8")
    return ["trials.parquet", "summary.json", *(f"best/{name}" for name in files)]


def table(answer: Answer) -> pd.DataFrame:
    """The trials; values of a key that no column can hold, as ``"auto"`` beside 5, as JSON."""
    frame = answer.sweep.frame
    for key, values in answer.space.values.items():
        kinds = {type(v) for v in values if v is not None}
        plain = kinds <= {int, float} or (len(kinds) == 1 and not kinds & {dict, list, tuple})
        if key in frame and not plain:
            frame[key] = frame[key].map(json.dumps)
    return frame


def summary_of(answer: Answer) -> dict[str, Any]:
    """Plain data, units in the names as in a run's summary."""
    plan, trials = answer.plan, answer.sweep.trials
    decides = importance(trials, answer.space.values, plan.objective.metric)
    return {
        "scenario": answer.scenario.name,
        "space": {key: list(values) for key, values in answer.space.values.items()},
        "targets": [f"{t.name} {t.condition}" for t in answer.limits],
        "objective": plan.objective._asdict(),
        "units": dict(answer.scenario.metrics),
        "tried": len(answer.sweep.trials),
        "size": answer.sweep.size,
        "unseen": answer.sweep.unseen,
        "complete": answer.sweep.complete,
        "meets": len(plan.ranked),
        "best": plan.best.plain() if plan.best else None,
        "instead": plan.instead.plain() if plan.instead else None,
        "nearest": None if plan.ranked else nearest(trials, answer.limits),
        "top": [t.plain() for t in plan.ranked[:TOP]],
        "pareto": [t.plain() for t in plan.pareto],
        "best_of_each_kind": [t.plain() for t in plan.kinds],
        "reasons": [r._asdict() for r in plan.reasons],
        "certainty": None if plan.certainty is None else asdict(plan.certainty),
        "no_effect": without_effect(answer.sweep.trials, answer.space),
        "beyond": beyond_ends(trials, answer.space, plan.best, plan.objective),
        "rests_on": [e._asdict() for e in answer.rests_on],
        "importance": None if decides is None else decides.plain(),
    }


def deploy_files(chosen: AnyScenario) -> dict[str, str]:
    """Content by name."""
    files = {"scenario.yaml": yaml_text(chosen.resolved())}
    config = deepspeed_json(chosen) if isinstance(chosen, Scenario) else None
    if config is not None:
        files["ds_config.json"] = json.dumps(config, indent=2) + "\n"
    files |= job_files(chosen)
    name, cluster = cluster_file(chosen)
    files["launch.sh"] = launch_script(chosen, name, files)
    return files | {name: cluster}


def deepspeed_json(chosen: Scenario) -> dict[str, Any] | None:
    """The user's JSON with the choice in it; what is ``auto`` there is said, or left out.

    Bucket sizes and the like that were ``auto`` are those that were predicted.
    """
    source, config = chosen.sources.get(DEEPSPEED), chosen.strategy.deepspeed
    if source is None or config is None:
        return None
    data: dict[str, Any] = copy.deepcopy(source.documents[0].data)
    batch = chosen.strategy.batch
    data["train_batch_size"] = batch.train
    data["train_micro_batch_size_per_gpu"] = batch.micro
    data["gradient_accumulation_steps"] = batch.accumulation
    _fill(data, {"gradient_clipping": config.gradient_clipping})
    _fill(data.get("zero_optimization", {}), _values(config.zero))
    _drop_auto(data)
    return data


def _values(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def _fill(section: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key in [k for k, v in section.items() if v == AUTO]:
        value = values.get(key)
        if isinstance(value, int | float):
            section[key] = value


def _drop_auto(section: dict[str, Any]) -> None:
    for key, value in list(section.items()):
        if value == AUTO:
            del section[key]
        elif isinstance(value, dict):
            _drop_auto(value)


def launch_script(chosen: AnyScenario, cluster: str, files: Mapping[str, str]) -> str:
    """Commands that start it; of a training job the script is the user's own."""
    up = f"ray up -y {cluster}" if cluster == "cluster.yaml" else f"kubectl apply -f {cluster}"
    head = "#!/usr/bin/env bash\n# Starts the chosen cluster and {what} on it.\nset -euo pipefail\n"
    if isinstance(chosen, Scenario):
        batch = chosen.strategy.batch
        return (
            f"{head.format(what='the training script given as argument')}{up}\n"
            f"# {chosen.strategy.mesh.world} workers, micro-batch {batch.micro}, "
            f"{batch.accumulation} accumulation steps, {batch.train} samples per step\n"
            f"{_training_command(chosen, files)}\n"
        )
    if SERVE in files:
        return f"{head.format(what='the application')}{up}\nserve deploy {SERVE}\n"
    script, args = chosen.job.script, chosen.job.args
    own = '"${1:?the program}"' if script is None else shlex.join([script.name, *args])
    what = "the program given as argument" if script is None else script.name
    return f"{head.format(what=what)}{up}\nray job submit --working-dir . -- python {own}\n"


def _training_command(chosen: Scenario, files: Mapping[str, str]) -> str:
    """DeepSpeed's and torch's scripts by Ray; Accelerate and Megatron have launchers of their own.

    Those run on every node, with its rank and the first node's address.
    """
    script = '"${1:?the training script}"'
    rank, first = '"${NODE_RANK:?}"', '"${MASTER_ADDR:?}"'
    if ACCELERATE in files:
        return (
            "# on every node:\n"
            f"accelerate launch --config_file {ACCELERATE} --machine_rank {rank} "
            f'--main_process_ip {first} --main_process_port 29500 "$@"'
        )
    source = chosen.sources.get(MEGATRON)
    if chosen.strategy.megatron is not None and source is not None:
        if MEGATRON_ARGS not in files:
            return f"# on every node:\nbash {Path(str(source.path)).name}"
        world, nodes = chosen.strategy.mesh.world, len(chosen.cluster.gpu_nodes)
        return (
            "# on every node:\n"
            f"torchrun --nproc_per_node {world // nodes} --nnodes {nodes} --node_rank {rank} "
            f"--master_addr {first} {script} $(cat {MEGATRON_ARGS})"
        )
    config = " --deepspeed ds_config.json" if "ds_config.json" in files else ""
    return f"ray job submit --working-dir . -- python {script}{config}"
