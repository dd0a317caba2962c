"""Environment variables of training processes, where a scenario's cluster file sets them.

The environment is that of KubeRay's containers (``env``) and of a RayJob's ``runtimeEnvYAML``
(``env_vars``); ``ray up`` has one of its own. Not modelled: containers that differ; what is found
first is everyone's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from raysim.errors import ScenarioError
from raysim.perf.host import HostPool, threads_said
from raysim.scenario.documents import Document, KeyPath
from raysim.scenario.load import Scenario
from raysim.scenario.ray_cluster_yaml import is_ray_cluster_yaml
from raysim.scenario.sources import CLUSTER
from raysim.scenario.yaml_text import parse_yaml_all

BLOCKING = "CUDA_LAUNCH_BLOCKING"
THREADS = "OMP_NUM_THREADS"


class Variable(NamedTuple):
    """A variable's text and where it stands."""

    value: str
    document: Document
    path: KeyPath


def variables(scenario: Scenario, names: Collection[str]) -> dict[str, Variable]:
    """Those of ``names`` that the cluster's documents set."""
    found: dict[str, Variable] = {}
    source = scenario.sources.get(CLUSTER)
    for document in source.documents if source is not None else ():
        for name, value, path in _variables(document.data, (), names):
            found.setdefault(name, Variable(value, document, path))
    return found


def launch_blocking(scenario: Scenario) -> bool:
    """Whether the host waits for every kernel: ``train.launch_blocking``, or CUDA's variable."""
    said = scenario.spec.train.launch_blocking
    if said is not None:
        return said
    found = variables(scenario, (BLOCKING,)).get(BLOCKING)
    return found is not None and found.value.strip() not in ("", "0")


def host_pool(scenario: Scenario, worker_cpus: float) -> HostPool:
    """The OpenMP threads of a rank that is a worker of Ray's with so many CPUs.

    Ray sets the variable where nobody has (``ray/_private/utils.py``,
    ``set_omp_num_threads_if_unset``). ``ray up`` exports 1 to every command, ``ray start`` among
    them, so that all workers have it, whatever their CPUs (``command_runner.py``,
    ``_with_interactive``).
    """
    train = scenario.spec.train
    if train.bind_cores_to_rank:
        return HostPool(bound=True)
    if train.omp_num_threads is not None:
        return HostPool(threads=train.omp_num_threads)
    found = variables(scenario, (THREADS,)).get(THREADS)
    threads = threads_said(found.value) if found is not None else None
    if threads is not None:
        return HostPool(threads=threads)
    source = scenario.sources.get(CLUSTER)
    if source is not None and any(map(is_ray_cluster_yaml, source.documents)):
        return HostPool(threads=1)
    return HostPool(threads=max(1, int(worker_cpus)))


def _variables(
    data: object, path: KeyPath, names: Collection[str]
) -> Iterator[tuple[str, str, KeyPath]]:
    """Anywhere in a cluster's document."""
    if isinstance(data, list):
        for i, item in enumerate(data):
            yield from _variables(item, (*path, i), names)
    if not isinstance(data, dict):
        return
    name, value = data.get("name"), data.get("value")
    if isinstance(name, str) and name in names and isinstance(value, str):
        yield name, value, (*path, "value")
    for key, item in data.items():
        if key == "runtimeEnvYAML" and isinstance(item, str):
            for variable, text in _runtime_env(item, names):
                yield variable, text, (*path, key)
        else:
            yield from _variables(item, (*path, key), names)


def _runtime_env(text: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Of what Ray would read as the job's runtime environment."""
    try:
        said = [document.data for document in parse_yaml_all(text, "runtimeEnvYAML")]
    except ScenarioError:
        return  # KubeRay refuses it; nothing here is about its other keys
    given = said[0].get("env_vars") if len(said) == 1 and isinstance(said[0], dict) else None
    for name in names:
        if isinstance(given, dict) and isinstance(given.get(name), str):
            yield name, given[name]
