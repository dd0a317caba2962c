"""The public surface, frozen: names, options, weight, errors. A change here is felt by users."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import raysim
from raysim import errors

OPTIONS = {
    "run": [
        "SCENARIO", "[ARGS]", "--set", "--cluster", "--compute", "--profile", "--seed",
        "--out/-o", "--until", "--check", "--json", "--quiet/-q", "--no-trace", "--trace-format",
        "--memory-snapshot",
    ],
    "plan": [
        "SCENARIO", "--set", "--vary", "--minimize", "--maximize", "--subject-to", "--days",
        "--budget", "--max-gpus", "--likely", "--quantile", "--jobs/-j", "--on", "--address",
        "--top", "--quiet/-q", "--out/-o", "--json",
    ],
    "memory": [
        "CONFIG", "--node", "--nodes", "--seq-len", "--zero-stage", "--offload",
        "--checkpointing", "--micro-batch", "--peft", "--fail-over", "--json", "--quiet/-q",
    ],
    "check": ["[SCENARIO]", "--set", "--schema", "--explain", "--quiet/-q"],
    "init": ["NAME", "--from", "--deepspeed", "--cluster", "--quiet/-q"],
    "show": ["[RUN]", "--table", "--tree", "--at", "--why", "--quiet/-q"],
    "compare": ["RUN...", "--by", "--html"],
    "open": ["[RUN]"],
    "catalog": ["[KIND]", "[NAME]"],
    "what-if": [
        "SCENARIO", "[ARGS]", "--at", "--change", "--save", "--set", "--cluster", "--compute",
        "--seed", "--jobs/-j", "--json", "--quiet/-q",
    ],
    "measure": [
        "WHAT", "--out/-o", "--budget", "--quick", "--device", "--backend", "--ranks",
        "--cases", "--quiet/-q",
    ],
    "validate": [
        "[CASES]", "--real", "--address", "--against", "--profile", "--out/-o", "--budget",
        "--repeat", "--intervals",
    ],
    "calibrate": [
        "DATA", "--fit", "--family", "--workloads", "--hold", "--out/-o", "--processes",
    ],
    "completion": ["SHELL"],
}  # fmt: skip
OF_ALL = ["--verbose/-v", "--log-file"]

HEAVY = {
    "pandas",
    "pyarrow",
    "plotly",
    "networkx",
    "torch",
    "ray",
    "jinja2",
    "perfetto",
    "pydantic",
}


def surface() -> dict[str, list[str]]:
    """Verb to its arguments and options, as typer sees them."""
    import typer.main

    from raysim.cli.app import app

    def word(parameter: object) -> str:
        opts = [o for o in getattr(parameter, "opts", ()) if o.startswith("-")]
        metavar = str(getattr(parameter, "metavar", ""))
        required = getattr(parameter, "required", False)
        return "/".join(opts) or (metavar if required else f"[{metavar}]")

    group = typer.main.get_command(app)
    return {name: [word(p) for p in verb.params] for name, verb in group.commands.items()}  # type: ignore[attr-defined]


def test_the_option_set_is_frozen() -> None:
    assert surface() == {verb: [*options, *OF_ALL] for verb, options in OPTIONS.items()}


def test_every_public_name_can_be_imported() -> None:
    missing = [name for name in raysim.__all__ if getattr(raysim, name, None) is None]
    assert missing == []
    assert sorted(raysim.__all__) == raysim.__all__


def test_run_stays_a_function_after_its_module_is_imported() -> None:
    import importlib

    importlib.import_module("raysim.run")
    assert inspect.isfunction(raysim.run)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'simulate'"):
        raysim.simulate  # noqa: B018


@pytest.mark.parametrize("module", ["raysim", "raysim.cli"])
def test_importing_is_cheap(module: str, root: Path) -> None:
    code = (
        "import time, sys, json; start = time.process_time(); import MODULE;"
        "print(json.dumps([time.process_time() - start, sorted(sys.modules)]))"
    ).replace("MODULE", module)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True
    )
    cpu_s, modules = json.loads(done.stdout)
    assert HEAVY & set(modules) == set()
    assert cpu_s < 0.3


def test_the_error_tree_has_four_branches() -> None:
    branches = {
        c.__name__ for c in errors.RaysimError.__subclasses__() if c.__module__ == errors.__name__
    }
    assert branches >= {
        "ScenarioError", "InfeasibleError", "CalibrationError", "InvariantViolation",
    }  # fmt: skip
    assert branches <= set(raysim.__all__)
