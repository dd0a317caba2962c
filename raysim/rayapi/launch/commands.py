"""The command line of a launcher: which script, with which arguments, in how many processes.

Real counterparts: ``deepspeed/launcher/runner.py`` (0.19), ``torch/distributed/run.py`` and
``launch.py`` (2.13); ``accelerate launch`` reads itself (``launch.accelerate``), ``fabric run`` is
torchrun (``launch.fabric``). Flags are theirs, and are read as theirs: what follows the script is
the script's. Flags that change neither who runs nor what a rank is told have no effect here.

Not modelled: launchers over MPI and Slurm, commands that are no Python, restarts.
"""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

from raysim.errors import ScenarioError
from raysim.rayapi.launch import fabric
from raysim.rayapi.launch.accelerate import SEVERAL, launch_words, read_launch

Kind = Literal["deepspeed", "torchrun", "python"]
_MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "launch",
    "deepspeed.launcher.runner": "deepspeed", "deepspeed": "deepspeed",
    "accelerate.commands.launch": "accelerate-launch",
}  # fmt: skip
"""Of ``python -m``: the launcher that this is."""
TORCH_PORT = 29500
"""``TORCH_DISTRIBUTED_DEFAULT_PORT`` of DeepSpeed, and torchrun's of a static rendezvous."""
_OF_DEEPSPEED_IGNORED = (
    "--launcher_args", "--node_rank", "--enable_each_rank_log", "--ssh_port", "--venv_script",
    "--log_level",
)  # fmt: skip
_FLAGS_OF_DEEPSPEED_IGNORED = ("--no_ssh", "--no_ssh_check", "--save_pid")
_OF_TORCHRUN_IGNORED = (
    "--rdzv-conf", "--monitor-interval", "--start-method",
    "--event-log-handler", "--role", "--log-dir", "--local-ranks-filter", "--node-rank",
    "--duplicate-stdout-filters", "--duplicate-stderr-filters", "--local-addr", "--logs-specs",
    "--numa-binding", "--signals-to-handle", "--shutdown-timeout",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a command line asks for."""

    kind: Kind
    words: tuple[str, ...]
    """The launcher's own, without the script."""
    script: str
    """Or the module."""
    args: tuple[str, ...]
    """Of the script."""
    module: bool = False
    """``python -m``."""
    local_rank: str = ""
    """The flag that tells a rank its number on its node; empty: none does."""
    least_nodes: int = 1
    nodes: int | None = None
    """At most; None: all there are."""
    per_node: int | Literal["gpu", "cpu", "auto"] | None = None
    """Processes of a node; None: as many as it has GPUs, or slots."""
    hostfile: str = ""
    include: str = ""
    exclude: str = ""
    multi: bool = False
    """Treat one node as several (``--force_multi``)."""
    binds_cores: bool = False
    """``--bind_cores_to_rank``."""
    core_list: str = ""
    """What ``--bind_core_list`` has in place of all cores: ``0,2-5``."""
    master_addr: str = ""
    master_port: int | None = None
    run_id: str = "none"
    """Of torchrun's rendezvous."""
    max_restarts: int = 0
    environ: tuple[tuple[str, str], ...] = ()
    """What ranks find beside the launcher's own variables."""
    accelerate: tuple[str, ...] | None = None
    """What followed ``accelerate launch``, if that is what started it."""

    @property
    def title(self) -> str:
        """In words: the launcher and the script."""
        launcher = self.kind if self.accelerate is None else "accelerate launch"
        return f"{launcher} {Path(self.script).name}"

    def file(self, folder: Path) -> Path:
        """The script's file, seen from a folder; a module's as ``-m`` finds it there.

        Or in ``PYTHONPATH`` and among what is installed, without importing what it is part of.
        """
        if not self.module:
            return folder / self.script
        places = [folder, *map(Path, filter(None, sys.path))]
        found = [_of_module(place.joinpath(*self.script.split("."))) for place in places]
        return next((file for file in found if file.is_file()), found[0])


def _of_module(path: Path) -> Path:
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


class _Parser(ArgumentParser):
    """One whose mistakes are the scenario's."""

    def error(self, message: str) -> NoReturn:
        raise ScenarioError(f"{self.prog}: {message}")


def read_command(words: Sequence[str]) -> Command:
    """A launcher's whole command line.

    Raises
    ------
    ScenarioError
        It is no launcher's, one of its flags is wrong, or asks for what is not emulated.
    """
    name, rest = (Path(words[0]).name, list(words[1:])) if words else ("", [])
    if name in ("python", "python3"):
        while rest[:1] in (["-u"], ["-B"], ["-O"]):
            rest.pop(0)
        if rest[:1] == ["-m"] and len(rest) > 1:
            if rest[1] not in _MODULES:
                return _plain(words, rest[1:], module=True)
            name, rest = _MODULES[rest[1]], rest[2:]
        else:
            return _plain(words, rest, module=False)
    if name == "deepspeed":
        return _deepspeed(words, rest)
    if name in ("torchrun", "launch"):
        return _torchrun(words, rest, legacy=name == "launch")
    if name == "accelerate":
        return _accelerate(words, launch_words(rest))
    if name == "accelerate-launch":
        return _accelerate(words, tuple(rest))
    if name == "fabric" and rest[:1] == ["run"]:
        return _fabric(words, rest[1:])
    raise ScenarioError(
        f"{' '.join(words)!r} is no launcher; known are deepspeed, torchrun, accelerate launch, "
        "fabric run and python"
    )


def _plain(words: Sequence[str], rest: Sequence[str], *, module: bool) -> Command:
    """``python train.py``: one process."""
    if not rest or rest[0].startswith("-"):
        raise ScenarioError("python: expected a script, or -m and a module")
    return Command(
        kind="python", words=tuple(words[: len(words) - len(rest)]), script=rest[0],
        args=tuple(rest[1:]), module=module, nodes=1, per_node=1,
    )  # fmt: skip


def _deepspeed(words: Sequence[str], rest: Sequence[str]) -> Command:
    parser = _Parser(prog="deepspeed", add_help=False)
    parser.add_argument("-H", "--hostfile", default="")
    parser.add_argument("-i", "--include", default="")
    parser.add_argument("-e", "--exclude", default="")
    parser.add_argument("--num_nodes", type=int, default=-1)
    parser.add_argument("--num_gpus", "--num_accelerators", type=int, default=-1)
    parser.add_argument("--master_port", type=int, default=TORCH_PORT)
    parser.add_argument("--master_addr", default="")
    parser.add_argument("--launcher", default="pdsh")
    parser.add_argument("--autotuning", default="")
    parser.add_argument("--bind_core_list", default="")
    for flag in ("--module", "--no_python", "--no_local_rank", "--force_multi",
                 "--bind_cores_to_rank"):  # fmt: skip
        parser.add_argument(flag, action="store_true")
    for flag in _OF_DEEPSPEED_IGNORED:
        parser.add_argument(flag)
    for flag in _FLAGS_OF_DEEPSPEED_IGNORED:
        parser.add_argument(flag, action="store_true")
    parser.add_argument("-q", "--quiet", action="store_true")
    given = _parsed(parser, rest)
    refused = {
        "--no_python": given.no_python, "--autotuning": given.autotuning,
        f"--launcher {given.launcher}": given.launcher.lower() != "pdsh",
    }  # fmt: skip
    _refuse("deepspeed", refused, "the pdsh launcher of Python scripts")
    if (given.include or given.exclude) and max(given.num_nodes, given.num_gpus) >= 0:
        parser.error("Cannot specify num_nodes/gpus with include/exclude")
    if given.include and given.exclude:
        parser.error("include_str and exclude_str are mutually exclusive.")
    return Command(
        kind="deepspeed", words=_own(words, given), script=given.script, args=tuple(given.args),
        module=given.module, local_rank="" if given.no_local_rank else "--local_rank",
        nodes=given.num_nodes if given.num_nodes > 0 else None,
        least_nodes=max(1, given.num_nodes),
        per_node=given.num_gpus if given.num_gpus > 0 else None, hostfile=given.hostfile,
        include=given.include, exclude=given.exclude, multi=given.force_multi,
        binds_cores=given.bind_cores_to_rank, core_list=given.bind_core_list,
        master_addr=given.master_addr, master_port=given.master_port,
    )  # fmt: skip


def _torchrun(words: Sequence[str], rest: Sequence[str], *, legacy: bool) -> Command:
    parser = _Parser(prog="torchrun", add_help=False)
    _either(parser, "--nnodes", default="1:1")
    _either(parser, "--nproc-per-node", default="1")
    _either(parser, "--rdzv-backend", default="static")
    _either(parser, "--rdzv-endpoint", default="")
    _either(parser, "--rdzv-id", default="none")
    _either(parser, "--max-restarts", type=int, default=0)
    _either(parser, "--master-addr", default="127.0.0.1")
    _either(parser, "--master-port", type=int, default=None)
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("-r", "--redirects")
    parser.add_argument("-t", "--tee")
    for flag in ("--standalone", "--no-python", "--run-path", "--virtual-local-rank"):
        _either(parser, flag, action="store_true")
    for flag in _OF_TORCHRUN_IGNORED:
        _either(parser, flag)
    if legacy:
        _either(parser, "--use-env", action="store_true")
    given = _parsed(parser, rest)
    refused = {"--no-python": given.no_python, "--virtual-local-rank": given.virtual_local_rank}
    _refuse("torchrun", refused, "Python scripts whose ranks see all GPUs of their node")
    least, most = _range(parser, given.nnodes)
    address, port = _master(given, most)
    return Command(
        kind="torchrun", words=_own(words, given), script=given.script, args=tuple(given.args),
        module=given.module, local_rank="--local-rank" if legacy and not given.use_env else "",
        nodes=most, least_nodes=least, per_node=_processes(parser, given.nproc_per_node),
        master_addr=address, master_port=port, run_id=given.rdzv_id,
        max_restarts=given.max_restarts,
    )  # fmt: skip


def _accelerate(words: Sequence[str], rest: tuple[str, ...]) -> Command:
    """What accelerate starts: torchrun's agent, DeepSpeed's runner, or one process."""
    found = read_launch(rest, SEVERAL)
    given = Namespace(**vars(found.given))
    if found.through == "deepspeed":
        runner = read_command(found.runner)
        args = runner.args
        return replace(runner, words=tuple(words[: len(words) - len(args) - 1]), accelerate=rest)
    args = tuple(given.training_script_args)
    own = Command(
        kind="python", words=tuple(words[: len(words) - len(args) - 1]),
        script=given.training_script, args=args, module=given.module, nodes=1, per_node=1,
        accelerate=rest,
    )  # fmt: skip
    if found.through == "python":
        return own
    nodes = int(given.nnodes.partition(":")[2] or given.nnodes.partition(":")[0])
    if given.master_addr in (None, "None"):
        given.master_addr = ""  # the first node's
    if given.rdzv_endpoint.startswith("None:"):
        given.rdzv_endpoint = given.rdzv_endpoint.removeprefix("None")
    address, port = _master(given, nodes)
    return replace(
        own, kind="torchrun", nodes=nodes, least_nodes=nodes,
        per_node="gpu" if found.all_gpus else int(given.nproc_per_node), master_addr=address,
        master_port=port, run_id=given.rdzv_id, max_restarts=given.max_restarts,
    )  # fmt: skip


def _fabric(words: Sequence[str], rest: Sequence[str]) -> Command:
    parser = _Parser(prog="fabric run", add_help=False)
    own, launcher, script, environ = fabric.torchrun_words(parser, rest)
    return replace(
        _torchrun(words, [*launcher, *script], legacy=False), words=(*words[:2], *own),
        environ=(*environ.items(),),
    )  # fmt: skip


def _master(given: Namespace, most_nodes: int) -> tuple[str, int | None]:
    """Where ranks meet; an empty address is that of the first node, no port is a free one."""
    endpoint, _, port = given.rdzv_endpoint.partition(":")
    if given.standalone:
        return "localhost", None
    if given.rdzv_backend != "static":
        return ("localhost" if endpoint == "localhost" else ""), None
    if endpoint or port:
        return endpoint, int(port or TORCH_PORT)
    if given.master_port is None and most_nodes == 1:
        return "localhost", None
    return given.master_addr, int(given.master_port or TORCH_PORT)


def _either(parser: ArgumentParser, flag: str, **how: object) -> None:
    """A flag of torchrun: with dashes or underscores."""
    other = "--" + flag[2:].replace("-", "_")
    names = [flag] if other == flag else [flag, other]
    parser.add_argument(*names, **how)  # type: ignore[arg-type]


def _parsed(parser: ArgumentParser, rest: Sequence[str]) -> Namespace:
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("args", nargs=REMAINDER)
    return parser.parse_args(list(rest))


def _own(words: Sequence[str], given: Namespace) -> tuple[str, ...]:
    """The launcher's part of the words; the parser has dropped a ``--`` behind the script."""
    own = words[: len(words) - len(given.args)]
    return tuple(own[: -2 if own[-1] == "--" else -1])


def _refuse(launcher: str, said: dict[str, object], instead: str) -> None:
    for flag, given in said.items():
        if given:
            raise ScenarioError(
                f"{launcher} {flag} is not emulated by raysim. Emulated instead: {instead}."
            )


def _range(parser: _Parser, text: str) -> tuple[int, int]:
    """``2`` or ``1:4``."""
    least, _, most = text.partition(":")
    try:
        found = int(least), int(most or least)
    except ValueError:
        parser.error(f'nnodes={text} is not in "MIN:MAX" format')
    if not 0 < found[0] <= found[1]:
        parser.error(f"nnodes={text}: expected 0 < MIN <= MAX")
    return found


def _processes(parser: _Parser, text: str) -> int | Literal["gpu", "cpu", "auto"]:
    if text in ("gpu", "cpu", "auto"):
        return text  # type: ignore[return-value]
    try:
        return int(text)
    except ValueError:
        parser.error(f"Unsupported nproc_per_node value: {text}")
