"""``raysim init --cluster``: what a KubeRay manifest runs beside the cluster it describes.

Around a RayService a scenario of its application, asked at an assumed rate: of vLLM's engines with
the LLMConfig's own arguments, of other applications with the deployments that the manifest names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError
from raysim.scenario.anyscale import read_cluster_file
from raysim.scenario.rayjob import read_rayservice

BEGINNING = """\
# What to predict, and on what.   raysim run {folder}
# Every default taken:             raysim check {folder}
# What a key means:                raysim check --explain {explained}
raysim: 1                            # version of this file format
name: {name}
seed: 0

cluster:
{cluster}
"""
"""Of any scenario.yaml that ``raysim init`` writes."""
_SCENARIO = """\
jobs:
  - {section}:
{job}
targets:                             # a missed one makes the exit code 1
  {target}
"""
_LLM = """\
      model: {model}
      engine_kwargs: {kwargs}
      {replicas}# of the LLMConfig, the least; the number stands
      load:                          # please say yours
        {prompt}# tokens
        output: {{mean: {output}, cv: 0.6}}
        rate: 5/s                    # raysim plan tries other sizes of the fleet
        requests: 3000
"""
_SERVE = """\
      config: {file}
      application: {application}
      deployments:                   # what a request does in each; please say yours
{deployments}      load: {{rate: 20/s, lasting: 10min}}   # please say yours
"""
_PROMPT, _OUTPUT, _SHARE = 1500, 300, 4
"""Assumed means of a chat's tokens; of a short ``max_model_len`` a quarter, so that few are cut."""
_TARGETS = {"llm": 'ttft_p99: "<= 2s"', "serve": 'latency_p99: "<= 1s"'}


def kind_of(cluster: Path) -> str:
    """``RayService`` or ``RayJob``; nothing where a file only has a cluster."""
    if cluster.suffix not in (".yaml", ".yml"):
        return ""
    data = [d.data for d in read_cluster_file(cluster, str(cluster))]
    kinds = [d.get("kind") for d in data if isinstance(d, Mapping)]
    return next((k for k in ("RayService", "RayJob") if k in kinds), "")


def serving(
    manifest: Path, cluster: str, folder: Path, name: str, *,
    names: Mapping[Path, str], config: Path | None,
) -> str:  # fmt: skip
    """scenario.yaml of what a RayService serves.

    Parameters
    ----------
    manifest
        The user's.
    cluster, name
        The scenario's section, and its name.
    folder
        The new one.
    names
        What files are called in it.
    config
        Of the model; None: none was given.

    Raises
    ------
    ScenarioError
        Something in it is wrong, or the config of the model it serves is not given.
    """
    documents = read_cluster_file(manifest, str(manifest))
    app = read_rayservice(documents).serve_config["applications"][0]
    said, file = _llm_config(app), names[manifest]
    section = "serve" if said is None else "llm"
    if said is None:
        job = _deployments(app, file)
    else:
        job = _llm(said, file, None if config is None else names[config])
    begun = BEGINNING.format(folder=folder, explained=f"{section}.load", name=name, cluster=cluster)
    return begun + _SCENARIO.format(section=section, job=job, target=_TARGETS[section])


def _llm_config(app: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first LLMConfig of an application of ``ray.serve.llm``."""
    if not str(app.get("import_path")).startswith("ray.serve.llm"):
        return None
    arguments = app.get("args")
    given = arguments.get("llm_configs") if isinstance(arguments, Mapping) else None
    first = given[0] if isinstance(given, list) and given else {}
    return first if isinstance(first, Mapping) else {}


def _llm(said: Mapping[str, Any], file: str, model: str | None) -> str:
    loading = said.get("model_loading_config") or {}
    source = loading.get("model_source") or loading.get("model_id") or "a model"
    if model is None:
        raise ScenarioError(
            f"{file} serves {source} with vLLM: give its config.json too, --from config.json"
        )
    deployment = said.get("deployment_config") or {}
    least = (deployment.get("autoscaling_config") or {}).get("min_replicas")
    replicas = deployment.get("num_replicas")
    kwargs = said.get("engine_kwargs") or {}
    first = next((n for n in (replicas, least) if isinstance(n, int) and n > 0), 1)
    longest = kwargs.get("max_model_len")
    room = longest if isinstance(longest, int) else _PROMPT * _SHARE
    prompt = min(_PROMPT, max(room // _SHARE, 1))
    return _LLM.format(
        model=json.dumps(model), kwargs=json.dumps(kwargs),
        replicas=f"replicas: {first}".ljust(31),
        prompt=f"prompt: {{mean: {prompt}, cv: 0.8}}".ljust(29),
        output=min(_OUTPUT, max(prompt // 2, 1)),
    )  # fmt: skip


def _deployments(app: Mapping[str, Any], file: str) -> str:
    """Those that the application names, each with some work to change."""
    named = [d["name"] for d in app.get("deployments") or [] if isinstance(d, dict) and "name" in d]
    lines = [f"        - {{name: {json.dumps(n)}, work: {{python: 10ms}}}}\n" for n in named]
    return _SERVE.format(
        file=json.dumps(file), application=json.dumps(app.get("name", "default")),
        deployments="".join(lines)
        or "        - {name: Deployment, work: {python: 10ms}}  # the manifest names none\n",
    )  # fmt: skip
