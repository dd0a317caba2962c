"""How a training script that knows no Ray is started: what its scenario says, or its imports do.

A launcher's command line is split by the launcher's own rules (``rayapi.launch.commands``): its
flags are the key ``launcher``, the script ``path``, what follows ``args``.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from raysim.errors import ScenarioError
from raysim.rayapi.launch.commands import Command, read_command

_RAY = ("ray", "raysim")
_LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
_TRAINERS = ("transformers.Trainer", "transformers.Seq2SeqTrainer", "transformers.trainer")


def command_of(launcher: str, path: str, args: Sequence[str]) -> Command:
    """What a scenario's script is started with.

    Raises
    ------
    ScenarioError
        It is no launcher, or one of its flags is wrong.
    """
    try:
        words = shlex.split(launcher)
    except ValueError as error:
        raise ScenarioError(f"launcher {launcher!r}: {error}") from None
    if words and words[-1] in ("-m", "--module"):
        module = PurePath(path).with_suffix("")
        parts = module.parts[:-1] if module.name == "__main__" else module.parts
        path = ".".join(parts)
    found = read_command([*words, path])
    found = (  # apart: a parser may take the script's flags for its own, abbreviated
        replace(found, args=tuple(args)) if found.accelerate is None
        else read_command([*words, path, *args])
    )  # fmt: skip
    if found.script != path:
        raise ScenarioError(f"launcher {launcher!r}: {found.script!r} is not among its flags")
    return found


def launcher_of(script: Path) -> tuple[str, str]:
    """The launcher that a script's imports ask for, and the module that does; empty: none.

    A script that imports ``ray`` starts its workers itself, Lightning its other ranks, and one of
    torch alone is a program of one process, whatever started it.
    """
    names = dict.fromkeys(_imported(*ast.walk(_tree(script))))
    if _of_ray(names):
        return "", ""
    for name in names:
        if any(_within(name, top) for top in _LIGHTNING):
            return "python", name
    if any(_within(name, "deepspeed") for name in names):
        return "deepspeed", "deepspeed"
    for name in names:
        if _within(name, "accelerate") or name in _TRAINERS:
            return "torchrun --nproc-per-node gpu", name
        if _within(name, "torch.distributed") or name == "torch.nn.parallel":
            return "torchrun --nproc-per-node gpu", name
    return "", ""


def found_launcher(said: str | None, script: Path) -> tuple[str, str]:
    """What is said, or ``launcher_of``; ``python`` starts a driver of Ray, which is no rank.

    One that imports ``ray`` where it needs it, by a flag, is no driver.
    """
    if not said:
        return launcher_of(script)
    if _of_ray(_imported(*_tree(script).body)):
        command = command_of(said, str(script), ())
        if command.kind == "python" and not command.module:
            return "", ""
    return said, ""


def on_nodes(launcher: str, nodes: int) -> str:
    """Of one that uses a single node unless it is told."""
    if nodes > 1 and launcher.startswith("torchrun "):
        return launcher.replace("torchrun ", f"torchrun --nnodes {nodes} ", 1)
    return launcher


def _tree(script: Path) -> ast.Module:
    try:
        return ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])  # running it will say so


def _of_ray(names: Iterable[str]) -> bool:
    return any(_within(name, top) for name in names for top in _RAY)


def _within(name: str, top: str) -> bool:
    return name == top or name.startswith(f"{top}.")


def _imported(*nodes: ast.AST) -> Iterator[str]:
    """Every module that these statements import, and names that may be modules."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from _names(node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from _names(node.names, f"{node.module}.")


def _names(aliases: Iterable[ast.alias], within: str = "") -> Iterator[str]:
    for alias in aliases:
        yield f"{within}{alias.name}"
