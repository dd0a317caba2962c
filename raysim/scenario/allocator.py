"""Where a scenario's files set PyTorch's allocator: ``train.allocator``, or the environment.

The environment is that of KubeRay's containers (``env``) and of a RayJob's ``runtimeEnvYAML``
(``env_vars``). torch reads ``PYTORCH_CUDA_ALLOC_CONF`` before ``PYTORCH_ALLOC_CONF``
(``c10/cuda/CUDAAllocatorConfig.h``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raysim.errors import ScenarioError
from raysim.scenario.documents import Document, KeyPath
from raysim.scenario.load import Scenario
from raysim.scenario.sources import CLUSTER
from raysim.scenario.yaml_text import parse_yaml_all
from raysim.training.allocator.config import AllocatorConfig, read_allocator

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def allocator_config(scenario: Scenario) -> AllocatorConfig:
    """The settings of the training processes; torch's defaults where nothing sets them.

    Raises
    ------
    ScenarioError
        torch would refuse them.
    """
    said = scenario.spec.train.allocator
    if said is not None:
        return read_allocator(said)
    found: dict[str, tuple[Any, Document, KeyPath]] = {}
    source = scenario.sources.get(CLUSTER)
    for document in source.documents if source is not None else ():
        for name, value, path in _variables(document.data, ()):
            found.setdefault(name, (value, document, path))
    for name in VARIABLES:
        if name in found:
            return _read(*found[name])
    return AllocatorConfig()


def _read(value: Any, document: Document, path: KeyPath) -> AllocatorConfig:
    try:
        return read_allocator(str(value))
    except ValueError as error:
        raise ScenarioError(document.problem(path, str(error))) from None


def _variables(data: Any, path: KeyPath) -> Iterator[tuple[str, Any, KeyPath]]:
    """Environment variables of the allocator anywhere in a cluster's document."""
    if isinstance(data, list):
        for i, item in enumerate(data):
            yield from _variables(item, (*path, i))
    if not isinstance(data, dict):
        return
    name = data.get("name")
    if name in VARIABLES and isinstance(data.get("value"), str):
        yield name, data["value"], (*path, "value")
    for key, item in data.items():
        if key == "runtimeEnvYAML" and isinstance(item, str):
            for variable, value in _runtime_env(item):
                yield variable, value, (*path, key)
        else:
            yield from _variables(item, (*path, key))


def _runtime_env(text: str) -> Iterator[tuple[str, Any]]:
    """Of what Ray would read as the job's runtime environment."""
    try:
        said = [document.data for document in parse_yaml_all(text, "runtimeEnvYAML")]
    except ScenarioError:
        return  # KubeRay refuses it; nothing here is about its other keys
    variables = said[0].get("env_vars") if len(said) == 1 and isinstance(said[0], dict) else None
    for name in VARIABLES:
        if isinstance(variables, dict) and isinstance(variables.get(name), str):
            yield name, variables[name]
