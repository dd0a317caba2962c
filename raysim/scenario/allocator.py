"""Where a scenario's files set PyTorch's allocator: ``train.allocator``, or the environment.

torch reads ``PYTORCH_CUDA_ALLOC_CONF`` before ``PYTORCH_ALLOC_CONF``
(``c10/cuda/CUDAAllocatorConfig.h``).
"""

from __future__ import annotations

from raysim.errors import ScenarioError
from raysim.scenario.environment import Variable, variables
from raysim.scenario.load import Scenario
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
    found = variables(scenario, VARIABLES)
    for name in VARIABLES:
        if name in found:
            return _read(found[name])
    return AllocatorConfig()


def _read(variable: Variable) -> AllocatorConfig:
    try:
        return read_allocator(variable.value)
    except ValueError as error:
        problem = variable.document.problem(variable.path, str(error))
        raise ScenarioError(problem) from None
