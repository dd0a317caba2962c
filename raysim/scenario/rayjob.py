"""What KubeRay's RayJob or RayCronJob runs and RayService serves, beside the cluster they describe.

Real counterpart: ``ray-operator/apis/ray/v1/rayjob_types.go`` and ``rayservice_types.go``. Clusters
of both are read by ``kuberay``.

The entrypoint's script is looked for beside the manifest, by its name, and in the ConfigMaps of the
manifest's own file, where KubeRay's samples keep it.

Not modelled: ``submitterPodTemplate``, ``deletionStrategy``, InteractiveMode, gang schedulers.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysim.errors import Problem, ScenarioError
from raysim.scenario.documents import Document, KeyPath, did_you_mean, shorten
from raysim.scenario.kuberay import as_rayjob
from raysim.scenario.node_request import ClusterReading
from raysim.scenario.yaml_text import parse_yaml_all, read_yaml_all

MODES = ("K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode")
UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
SERVICE_DELETION_DELAY_S = 60
"""``RayClusterDeletionDelaySeconds``: the old cluster goes so long after the new one serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayJobRequest:
    """One RayJob; names are its own."""

    name: str
    script: Path
    """Where the script is, or would be: ``source`` is its text if it has no file."""
    source: str | None
    args: tuple[str, ...]
    submission_mode: str = "K8sJobMode"
    backoff_limit: int = 0
    active_deadline_seconds: float | None = None
    ttl_seconds_after_finished: float = 0.0
    shutdown_after_job_finishes: bool = False
    own_cluster: bool = True
    """False: it runs on the cluster that ``clusterSelector`` names."""
    resources: dict[str, Any] = field(default_factory=dict)
    """``entrypointNumCpus`` and the others, as actor options."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    """Without a ``working_dir`` of the image, which is not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayServiceRequest:
    """One RayService: what ``serveConfigV2`` says, and how it is upgraded."""

    name: str
    serve_config: dict[str, Any]
    text: str
    """The same as it stands there."""
    upgrade: str
    deletion_delay_s: float

    @property
    def capacity_factor(self) -> int:
        """Nodes needed while it is upgraded, over those it has: both clusters serve."""
        return 2 if self.upgrade == "NewCluster" else 1


def read_rayjob(documents: Sequence[Document], folder: Path) -> RayJobRequest:
    """The first RayJob of a file, or the one that its RayCronJob makes.

    Parameters
    ----------
    documents
        Of the file.
    folder
        Where it is: scripts are looked for here.

    Raises
    ------
    ScenarioError
        There is none, or something in it is wrong.
    """
    document = _of_kind([as_rayjob(d) for d in documents], "RayJob")
    reading = ClusterReading(document)
    spec = reading.mapping(("spec",), required=True)
    mode = spec.get("submissionMode", "K8sJobMode")
    if mode not in MODES:
        reading.error(("spec", "submissionMode"), f"unknown{did_you_mean(mode, MODES)}")
    elif mode == "InteractiveMode":
        reading.error(("spec", "submissionMode"), "people submit it: write the job under `jobs`")
    if spec.get("suspend") is True:
        reading.error(("spec", "suspend"), "a suspended job does not start")
    entrypoint = spec.get("entrypoint")
    script, source, args, env_vars = _entrypoint(reading, entrypoint, documents, folder)
    runtime_env = _yaml(reading, ("spec", "runtimeEnvYAML"), spec.get("runtimeEnvYAML"))
    runtime_env = dict(runtime_env) if isinstance(runtime_env, dict) else {}
    given = runtime_env.get("env_vars")
    if isinstance(given, dict):
        env_vars = {str(k): str(v) for k, v in given.items()} | env_vars
    runtime_env |= {"env_vars": env_vars} if env_vars else {}
    if "://" not in str(runtime_env.get("working_dir")):
        runtime_env.pop("working_dir", None)
    resources = {
        option: _number(reading, key, spec.get(key))
        for option, key in (("num_cpus", "entrypointNumCpus"), ("num_gpus", "entrypointNumGpus"))
        if spec.get(key)
    }
    deadline = spec.get("activeDeadlineSeconds")
    deadline_s = None if deadline is None else _number(reading, "activeDeadlineSeconds", deadline)
    custom = _yaml(reading, ("spec", "entrypointResources"), spec.get("entrypointResources"))
    request = RayJobRequest(
        name=str(reading.mapping(("metadata",)).get("name", "rayjob")),
        script=script, source=source, args=args, runtime_env=runtime_env, submission_mode=str(mode),
        backoff_limit=int(_number(reading, "backoffLimit", spec.get("backoffLimit"))),
        active_deadline_seconds=deadline_s,
        ttl_seconds_after_finished=_number(
            reading, "ttlSecondsAfterFinished", spec.get("ttlSecondsAfterFinished")
        ),
        shutdown_after_job_finishes=spec.get("shutdownAfterJobFinishes") is True,
        own_cluster=not spec.get("clusterSelector"),
        resources={**resources, "resources": custom} if isinstance(custom, dict) else resources,
    )  # fmt: skip
    if reading.errors:
        raise ScenarioError(reading.errors)
    return request


def of_rayjob(file: Path) -> Document | None:
    """The scenario that a manifest with a RayJob is by itself; None of other files."""
    try:
        text = file.read_bytes()
        if not any(kind in text for kind in (b"RayJob", b"RayCronJob")):
            return None
        documents = [as_rayjob(document) for document in read_yaml_all(file, str(file))]
    except (OSError, ValueError, ScenarioError):  # ValueError: no name of a file at all
        return None  # whoever reads it next says what is wrong
    for document in documents:
        if isinstance(document.data, dict) and document.data.get("kind") == "RayJob":
            data = {
                "name": read_rayjob(documents, file.parent).name, "cluster": {"from": file.name},
                "jobs": [{"rayjob": {"path": file.name}}],
            }  # fmt: skip
            return Document(file=str(file), data=data)
    return None


def read_rayservice(documents: Sequence[Document]) -> RayServiceRequest:
    """The first RayService of a file.

    Raises
    ------
    ScenarioError
        There is none, or something in it is wrong.
    """
    document = _of_kind(documents, "RayService")
    reading = ClusterReading(document)
    spec = reading.mapping(("spec",), required=True)
    path: KeyPath = ("spec", "serveConfigV2")
    config = _yaml(reading, path, spec.get("serveConfigV2"))
    if not isinstance(config, dict) or not isinstance(config.get("applications"), list):
        reading.error(path, "expected the text of a Serve config with `applications`")
    strategy = reading.mapping(("spec", "upgradeStrategy"))
    upgrade = str(strategy.get("type", "NewCluster"))
    if upgrade not in UPGRADES:
        hint = did_you_mean(upgrade, UPGRADES)
        reading.error(("spec", "upgradeStrategy", "type"), f"unknown{hint}")
    delay = spec.get("rayClusterDeletionDelaySeconds", SERVICE_DELETION_DELAY_S)
    delay_s = _number(reading, "rayClusterDeletionDelaySeconds", delay)
    if reading.errors:
        raise ScenarioError(reading.errors)
    name = str(reading.mapping(("metadata",)).get("name", "rayservice"))
    return RayServiceRequest(
        name=name,
        serve_config=config,
        text=str(spec["serveConfigV2"]),
        upgrade=upgrade,
        deletion_delay_s=delay_s,
    )


def _of_kind(documents: Sequence[Document], kind: str) -> Document:
    for document in documents:
        if isinstance(document.data, dict) and document.data.get("kind") == kind:
            return document
    first = documents[0] if documents else Document(file="manifest", data=None)
    raise ScenarioError(first.problem((), f"no {kind} in this file"))


def _entrypoint(
    reading: ClusterReading, entrypoint: object, documents: Sequence[Document], folder: Path
) -> tuple[Path, str | None, tuple[str, ...], dict[str, str]]:
    """The script, its text if it has no file, its arguments and variables set before it."""
    where: KeyPath = ("spec", "entrypoint")
    nothing: tuple[Path, None, tuple[str, ...], dict[str, str]] = folder, None, (), {}
    try:
        words = shlex.split(entrypoint) if isinstance(entrypoint, str) else []
    except ValueError as error:
        reading.error(where, f"no shell command: {error}")
        return nothing
    variables: dict[str, str] = {}
    while words and words[0].partition("=")[0].isidentifier() and "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    command = Path(words.pop(0)).name if words else ""
    while words and words[0] in ("-u", "-B", "-O"):
        words.pop(0)
    if not command.startswith("python") or not words or words[0].startswith("-"):
        reading.error(where, f"expected `python script.py ...`, got {shorten(entrypoint)}")
        return nothing
    name = Path(words[0]).name
    source = None
    if not (folder / name).is_file():
        source = next(
            (
                str(d.data["data"][name])
                for d in documents
                if isinstance(d.data, dict)
                and d.data.get("kind") == "ConfigMap"
                and isinstance(d.data.get("data"), dict)
                and name in d.data["data"]
            ),
            None,
        )
        if source is None:
            reading.error(where, f"{name} is neither in {folder} nor in a ConfigMap of the file")
    return folder / name, source, tuple(words[1:]), variables


def _yaml(reading: ClusterReading, path: KeyPath, text: object) -> Any:
    """What a text within the manifest says; JSON is YAML."""
    if text is None:
        return None
    if not isinstance(text, str):
        reading.error(path, f"expected text, got {shorten(text)}")
        return None
    try:
        found = parse_yaml_all(text, reading.document.file)
        data = found[0].data if found else None
        return json.loads(data) if isinstance(data, str) and data.startswith("{") else data
    except (ScenarioError, ValueError) as error:
        problems = error.problems if isinstance(error, ScenarioError) else []
        said = problems[0].message if problems else str(error)
        reading.error(path, f"cannot be read: {said}")
        return None


def _number(reading: ClusterReading, key: str, value: object) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        reading.error(("spec", key), f"expected a number of at least 0, got {shorten(value)}")
        return 0.0
    return float(value)


def of_service(documents: Sequence[Document]) -> Iterator[Problem]:
    """What is to be said of a RayService, if there is one."""
    if not any(isinstance(d.data, dict) and d.data.get("kind") == "RayService" for d in documents):
        return
    service = read_rayservice(documents)
    count = len(service.serve_config["applications"])
    said = f"{count} application{'s' * (count != 1)} of serveConfigV2 handed on"
    if service.capacity_factor > 1:
        said += (
            f"; an upgrade ({service.upgrade}) needs twice the nodes until "
            f"{service.deletion_delay_s:g} s after the new cluster serves"
        )
    yield _of_kind(documents, "RayService").problem(("spec", "serveConfigV2"), said, key=True)
