"""What a plan leaves: trials as a table, a summary, and files ready to deploy.

``best/`` holds the scenario of the first choice, DeepSpeed's JSON without any ``"auto"``, the
user's cluster file with the chosen sizes (or a RayCluster, where the scenario had none), and the
commands that start it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.hardware.cluster import NodeGroup
from raysim.planner.plan import Answer
from raysim.results.result import yaml_text
from raysim.scenario.load import Scenario
from raysim.scenario.sources import CLUSTER, DEEPSPEED
from raysim.units import GIB

if TYPE_CHECKING:
    import pandas as pd

IMAGE = "rayproject/ray:2.60.0"
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
    """The trials; values of a key that no column can hold together, as ``"auto"`` and 5, as JSON."""
    frame = answer.sweep.frame
    for key, values in answer.space.values.items():
        kinds = {type(v) for v in values if v is not None}
        plain = kinds <= {int, float} or (len(kinds) == 1 and not kinds & {dict, list, tuple})
        if key in frame and not plain:
            frame[key] = frame[key].map(json.dumps)
    return frame


def summary_of(answer: Answer) -> dict[str, Any]:
    """Plain data, units in the names as in a run's summary."""
    plan = answer.plan
    return {
        "scenario": answer.scenario.name,
        "space": {key: list(values) for key, values in answer.space.values.items()},
        "targets": [f"{t.name} {t.condition}" for t in answer.limits],
        "objective": plan.objective._asdict(),
        "tried": len(answer.sweep.trials),
        "size": answer.sweep.size,
        "complete": answer.sweep.complete,
        "meets": len(plan.ranked),
        "best": plan.best.plain() if plan.best else None,
        "instead": plan.instead.plain() if plan.instead else None,
        "top": [t.plain() for t in plan.ranked[:TOP]],
        "pareto": [t.plain() for t in plan.pareto],
        "reasons": [r._asdict() for r in plan.reasons],
        "rests_on": [e._asdict() for e in answer.rests_on],
    }


def deploy_files(chosen: Scenario) -> dict[str, str]:
    """Content by name."""
    files = {"scenario.yaml": yaml_text(chosen.resolved())}
    config = deepspeed_json(chosen)
    if config is not None:
        files["ds_config.json"] = json.dumps(config, indent=2) + "\n"
    name, cluster = cluster_file(chosen)
    files[name] = cluster
    files["launch.sh"] = launch_script(chosen, name, deepspeed=config is not None)
    return files


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


def cluster_file(chosen: Scenario) -> tuple[str, str]:
    """Name and content of the file that makes the chosen cluster."""
    counts = {group.name: group.count for group in chosen.cluster.groups}
    source = chosen.sources.get(CLUSTER)
    if source is None:
        return "raycluster.yaml", yaml_text(ray_cluster(chosen))
    documents = [copy.deepcopy(d.data) for d in source.documents]
    for document in documents:
        _resize(document, counts)
    kube = any(isinstance(d, dict) and "apiVersion" in d for d in documents)
    name = "raycluster.yaml" if kube else "cluster.yaml"
    return name, "---\n".join(yaml_text(d) for d in documents)


def _resize(document: Any, counts: Mapping[str, int]) -> None:
    """Set the sizes of groups, of KubeRay's workers or of ``ray up``'s node types."""
    if not isinstance(document, dict):
        return
    spec = document.get("spec", {})
    spec = spec.get("rayClusterSpec", spec) if isinstance(spec, dict) else {}
    for group in spec.get("workerGroupSpecs") or []:
        if group.get("groupName") in counts:
            count = counts[group["groupName"]]
            group.update(replicas=count, minReplicas=count, maxReplicas=count)
    types = document.get("available_node_types") or {}
    for name, node_type in types.items():
        if name in counts and name != document.get("head_node_type"):
            node_type.update(min_workers=counts[name], max_workers=counts[name])
    if types:
        head = document.get("head_node_type")
        document["max_workers"] = sum(n for name, n in counts.items() if name != head)


def ray_cluster(chosen: Scenario) -> dict[str, Any]:
    """A RayCluster of the chosen nodes, for a scenario that says them by itself."""
    head = {
        "rayStartParams": {"num-cpus": "0"},
        "template": _pod("ray-head", IMAGE, {"cpu": "8", "memory": "32Gi"}),
    }
    return {
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": chosen.name},
        "spec": {
            "rayVersion": IMAGE.rsplit(":", maxsplit=1)[1], "headGroupSpec": head,
            "workerGroupSpecs": [_worker_group(g) for g in chosen.cluster.groups],
        },
    }  # fmt: skip


def _worker_group(group: NodeGroup) -> dict[str, Any]:
    node = group.node
    limits = {"cpu": str(node.vcpus), "memory": f"{int(node.memory_bytes / GIB)}Gi"}
    image = IMAGE
    if node.gpu is not None:
        limits["nvidia.com/gpu"] = str(node.gpu_count)
        image = f"{IMAGE}-gpu"
    return {
        "groupName": group.name.replace("_", "-"), "replicas": group.count,
        "minReplicas": group.count, "maxReplicas": group.count, "rayStartParams": {},
        "template": _pod("ray-worker", image, limits),
    }  # fmt: skip


def _pod(name: str, image: str, limits: Mapping[str, str]) -> dict[str, Any]:
    resources = {"limits": dict(limits), "requests": dict(limits)}
    container = {"name": name, "image": image, "resources": resources}
    return {"spec": {"containers": [container]}}


def launch_script(chosen: Scenario, cluster: str, *, deepspeed: bool) -> str:
    """Commands that start it; the training script is the user's own."""
    up = f"ray up -y {cluster}" if cluster == "cluster.yaml" else f"kubectl apply -f {cluster}"
    config = " --deepspeed ds_config.json" if deepspeed else ""
    batch = chosen.strategy.batch
    return (
        "#!/usr/bin/env bash\n"
        "# Starts the chosen cluster and the training script given as argument on it.\n"
        "set -euo pipefail\n"
        f"{up}\n"
        f"# {chosen.strategy.mesh.world} workers, micro-batch {batch.micro}, "
        f"{batch.accumulation} accumulation steps, {batch.train} samples per step\n"
        'ray job submit --working-dir . -- python "${1:?the training script}"'
        f"{config}\n"
    )
