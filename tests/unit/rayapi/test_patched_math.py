"""Functions of ``math`` that training scripts see are found where they say they are.

numba looks them up by module and name when it is imported, which a busy network does in the middle
of a run.
"""

from __future__ import annotations

import importlib
import math
import sys

import pytest

pytest.importorskip("torch")


def test_math_is_found_by_module_and_name_while_workers_run() -> None:
    from raysim.rayapi.shapes.patches import torch_of_workers

    real = math.isinf
    with torch_of_workers():
        assert math.isinf is not real
        assert getattr(sys.modules[math.isinf.__module__], math.isinf.__name__) is math.isinf
        assert importlib.import_module("numba").njit(lambda x: x + 1)(1) == 2
    assert math.isinf is real
