"""Ray Serve's config file, unmodified: options of its deployments in a ``serve`` section's words.

Real counterpart: what ``serve build`` writes and ``serve deploy`` reads (``serve/schema.py``,
``ServeDeploySchema``, ray 2.60). What a request does and how long it takes stands in the scenario,
by deployment; options that both give are the scenario's.

Not read: proxies' options, logging, runtime environments, ``user_config`` and arguments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raysim.errors import ScenarioError
from raysim.raylibs.serve.config import AutoscalingConfig
from raysim.scenario.documents import Document, KeyPath
from raysim.scenario.problems import problems_of
from raysim.scenario.rayjob import read_rayservice
from raysim.scenario.schema_serve import DeploymentSection
from raysim.scenario.yaml_text import parse_yaml_all, read_yaml, read_yaml_all

AUTO_MAX_REPLICAS = 100
"""``num_replicas: auto`` (``handle_num_replicas_auto`` of ``serve/config.py``)."""
_SAME = (
    "name", "num_replicas", "max_ongoing_requests", "max_queued_requests", "autoscaling_config",
    "graceful_shutdown_timeout_s", "health_check_period_s",
)  # fmt: skip
_SCALING = tuple(AutoscalingConfig.__dataclass_fields__)


def deployments_of(
    file: Path, application: str | None, said: list[DeploymentSection]
) -> list[DeploymentSection]:
    """Of one application of the file, with what the scenario says of each.

    Parameters
    ----------
    file
        YAML of ``serve build``, or of a KubeRay RayService that holds it.
    application
        Its name; None if there is only one.
    said
        The scenario's own; those the file does not name come last.

    Raises
    ------
    ScenarioError
        The file is none, has no such application, or an option has a wrong value.
    """
    document = _config(file)
    at = _application(document, application)
    app = document.data["applications"][at[1]]
    own = {d.name: d for d in said}
    if not own and not app.get("deployments"):
        raise ScenarioError(document.problem(at, _no_deployments(app)))
    found = []
    for i, options in enumerate(app.get("deployments", [])):
        where = (*at, "deployments", i)
        if not isinstance(options, dict) or "name" not in options:
            raise ScenarioError(document.problem(where, "a deployment has a name"))
        section = own.pop(options["name"], None)
        given = section.model_dump(exclude_unset=True) if section is not None else {}
        try:
            found.append(DeploymentSection.model_validate(_options(options)))
        except ValidationError as error:
            raise ScenarioError(
                problems_of(error, document, DeploymentSection, prefix=where)
            ) from None
        if section is not None:
            found[-1] = found[-1].model_copy(
                update={name: getattr(section, name) for name in given}
            )
    return [*found, *own.values()]


def _config(file: Path) -> Document:
    """The file, or of a RayService the text of its ``serveConfigV2``, whose lines count from 1."""
    documents = read_yaml_all(file, file.name)
    if not any(isinstance(d.data, dict) and d.data.get("kind") == "RayService" for d in documents):
        return read_yaml(file, file.name)
    text = read_rayservice(documents).text
    return parse_yaml_all(text, f"serveConfigV2 of {file.name}")[0]


def _application(document: Document, name: str | None) -> KeyPath:
    apps = document.data.get("applications") if isinstance(document.data, dict) else None
    if not isinstance(apps, list) or not all(isinstance(a, dict) for a in apps):
        raise ScenarioError(document.problem((), "is not a Serve config: it has no applications"))
    names = [a.get("name", "default") for a in apps]
    if name is None and len(apps) == 1:
        return ("applications", 0)
    if name not in names:
        what = "say which `application`" if name is None else f"no application {name}"
        there = ", ".join(map(str, names))
        raise ScenarioError(document.problem(("applications",), f"{what}; there are {there}"))
    return ("applications", names.index(name))


def _no_deployments(app: dict[str, Any]) -> str:
    """What to do about an application that leaves its deployments to the code it imports."""
    path = app.get("import_path")
    if str(path).startswith("ray.serve.llm"):
        return (
            "Ray Serve LLM's application: say it as `llm: {model: config.json, engine_kwargs: ..., "
            "replicas: 1, load: ...}` in place of `serve`, with the engine_kwargs of its "
            f"LLMConfig, or run a script that calls {str(path).rpartition(':')[2]}"
        )
    return (
        f"names no deployments: {path} makes them; name them, and what a request does in each, "
        "under `deployments` beside `config`"
    )


def _options(options: dict[str, Any]) -> dict[str, Any]:
    """In the section's words."""
    made = {key: options[key] for key in _SAME if options.get(key) is not None}
    if isinstance(made.get("autoscaling_config"), dict):
        scaling = made["autoscaling_config"]
        made["autoscaling_config"] = {"max_replicas": 1} | {
            k: v for k, v in scaling.items() if k in _SCALING and v is not None
        }
    if made.get("num_replicas") == "auto":
        del made["num_replicas"]
        given = made.get("autoscaling_config", {})
        made["autoscaling_config"] = given | {
            "max_replicas": options.get("autoscaling_config", {}).get(
                "max_replicas", AUTO_MAX_REPLICAS
            )
        }
    actor = options.get("ray_actor_options") or {}
    made |= {k: actor[k] for k in ("num_cpus", "num_gpus", "resources") if actor.get(k) is not None}
    if options.get("placement_group_bundles"):
        made["placement_group"] = {
            "bundles": options["placement_group_bundles"],
            "strategy": options.get("placement_group_strategy") or "PACK",
        }
    return made
