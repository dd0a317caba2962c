"""Files of the chosen job in its tool's own words: Accelerate's config, Megatron's script, Serve's.

DeepSpeed's JSON is in ``files.py``. Of a script that cannot be changed with certainty, all
arguments are written as one line instead.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.errors import ScenarioError
from raysim.planner.deploy_yaml import deploy_yaml
from raysim.planner.fsdp_file import fsdp_file
from raysim.scenario.arguments import read_arguments
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.sources import FSDP, MEGATRON, PEFT
from raysim.scenario.yaml_text import read_yaml

if TYPE_CHECKING:
    from raysim.scenario.program import ProgramScenario

ACCELERATE, MEGATRON_ARGS = "accelerate.yaml", "megatron_args.txt"
ADAPTER = "adapter_config.json"
SERVE, RAY_TRAIN = "serve_config.yaml", "ray_train.json"
APP = "main:app"
"""Import path of an application whose code the scenario does not know."""
SERVE_OPTIONS = (
    "num_replicas", "autoscaling_config", "max_ongoing_requests", "max_queued_requests",
    "graceful_shutdown_timeout_s", "health_check_period_s",
)  # fmt: skip
"""Of a deployment, those that Serve's config file knows by the same names."""


def job_files(chosen: AnyScenario) -> dict[str, str]:
    """Content by name; none where the job has no file but its program."""
    if isinstance(chosen, Scenario):
        if chosen.strategy.engine == "fsdp":
            return _adapter(chosen) | (_accelerate(chosen) or fsdp_file(chosen))
        return _adapter(chosen) | _megatron(chosen)
    return {**_serve(chosen), **_ray_train(chosen)}


def _adapter(chosen: Scenario) -> dict[str, str]:
    """PEFT's config with the choice in it."""
    source = chosen.sources.get(PEFT)
    return {} if source is None else {ADAPTER: json.dumps(source.content, indent=2) + "\n"}


def _accelerate(chosen: Scenario) -> dict[str, str]:
    """Accelerate's config with the choice in it, for as many machines as were chosen."""
    source = chosen.sources.get(FSDP)
    data = None if source is None else copy.deepcopy(source.documents[0].data)
    if not isinstance(data, dict) or not {"fsdp_config", "distributed_type"} & data.keys():
        return {}
    world = chosen.strategy.mesh.world
    per_node = max(g.node.gpu_count for g in chosen.cluster.groups)
    data |= {"num_processes": world, "num_machines": max(1, -(-world // per_node))}
    if data["num_machines"] > 1:  # given to every machine by launch.sh
        data.pop("machine_rank", None)
    return {ACCELERATE: deploy_yaml(data)}


def _megatron(chosen: Scenario) -> dict[str, str]:
    source = chosen.sources.get(MEGATRON)
    if source is None or chosen.strategy.megatron is None:
        return {}
    wanted = source.documents[0].data
    if source.path is not None and (script := _script(chosen.folder / source.path, wanted)):
        return {Path(source.path).name: script}
    return {MEGATRON_ARGS: " ".join(_flags(wanted)) + "\n"}


def _script(path: Path, wanted: Mapping[str, Any]) -> str | None:
    """The user's script with other values; None where reading it again would not find them."""
    try:
        text, found = path.read_text(encoding="utf-8"), read_arguments(path, path.name).data
    except (OSError, ScenarioError):
        return None
    for name, value in wanted.items():
        if found.get(name) != value:
            flag = f"--{name.replace('_', '-')}"
            said = re.compile(rf"(?<!\S){flag}[ =]\S+")
            if not said.search(text):
                return None
            text = said.sub(f"{flag} {value}", text)
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / path.name
        again.write_text(text, encoding="utf-8")
        return text if read_arguments(again, path.name).data == dict(wanted) else None


def _flags(arguments: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in arguments.items():
        values = value if isinstance(value, list) else [] if value is True else [value]
        if value is not False:
            words += [f"--{name.replace('_', '-')}", *(shlex.quote(str(v)) for v in values)]
    return words


def _ray_train(chosen: ProgramScenario) -> dict[str, str]:
    """What the chosen run of Ray Train gives its ``ScalingConfig`` and ``RunConfig``."""
    said = chosen.spec.jobs[0].trainer
    if said is None:
        return {}
    failure = said.failure_config
    scaling: dict[str, Any] = {"num_workers": said.num_workers, "use_gpu": said.use_gpu}
    if said.resources_per_worker is not None:
        scaling["resources_per_worker"] = said.resources_per_worker
    run = {
        "failure_config": failure.model_dump(include={"max_failures", "controller_failure_limit"}),
        "checkpoint_config": {"num_to_keep": said.num_to_keep},
    }
    written = {
        "scaling_config": scaling | {"placement_strategy": said.placement_strategy},
        "run_config": run,
    }
    every = None if said.train is None else said.train.checkpoint.every
    if every is not None:
        written["your_loop"] = {"checkpoint_every_s": every}
    return {RAY_TRAIN: json.dumps(written, indent=2) + "\n"}


def _serve(chosen: ProgramScenario) -> dict[str, str]:
    """Serve's config file: the user's with the choice in it, or one to be given an import path."""
    said = chosen.spec.jobs[0].serve
    if said is None:
        return {}
    known = {} if said.config is None else read_yaml(chosen.folder / said.config, said.config).data
    data: dict[str, Any] = copy.deepcopy(known)
    apps = data.setdefault("applications", [{"name": "default", "import_path": APP}])
    app = next((a for a in apps if a.get("name") == said.application), apps[0])
    options = {d.get("name"): d for d in app.setdefault("deployments", [])}
    for deployment in said.deployments:
        if deployment.name not in options:
            app["deployments"].append({"name": deployment.name})
        own = options.setdefault(deployment.name, app["deployments"][-1])
        given = deployment.model_dump(include=deployment.model_fields_set & set(SERVE_OPTIONS))
        bounds = deployment.autoscaling_config
        if bounds is not None and "autoscaling_config" in given:
            given["autoscaling_config"] = bounds.model_dump(include=bounds.model_fields_set)
            own.pop("num_replicas", None)
        own |= given
    return {SERVE: deploy_yaml(data)}
