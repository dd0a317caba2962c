"""``fabric run``: torchrun, with what its flags say in each rank's environment.

Real counterpart: ``lightning/fabric/cli.py`` (2.6). Flags may stand before the script or behind it.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

_OF_RANKS = ("accelerator", "strategy", "devices", "num_nodes", "precision")
"""What Fabric reads from ``LT_DEVICES`` and so on."""


def torchrun_words(
    parser: ArgumentParser, rest: Sequence[str]
) -> tuple[list[str], list[str], list[str], dict[str, str]]:
    """Its own flags, what torchrun is given, the script and its arguments, ranks' environment."""
    for flag in ("accelerator", "strategy", "precision"):
        parser.add_argument(f"--{flag}")
    parser.add_argument("--devices", default="1")
    parser.add_argument("--num-nodes", "--num_nodes", default="1")
    parser.add_argument("--node-rank", "--node_rank")
    parser.add_argument("--main-address", "--main_address", default="127.0.0.1")
    parser.add_argument("--main-port", "--main_port", default="29400")
    parser.add_argument("script", metavar="SCRIPT")
    given, args = parser.parse_known_args(list(rest))
    said = {name: value for name, value in vars(given).items() if value is not None}
    own = [f"--{name}={value}" for name, value in said.items() if name != "script"]
    processes = "1" if given.strategy == "dp" else _processes(given.devices)
    words = [
        f"--nproc-per-node={processes}", f"--nnodes={given.num_nodes}",
        f"--master-addr={given.main_address}", f"--master-port={given.main_port}",
    ]  # fmt: skip
    environ = {f"LT_{name.upper()}": said[name] for name in _OF_RANKS if name in said}
    return own, words, [given.script, *args], {"LT_CLI_USED": "1", **environ}


def _processes(devices: str) -> str:
    """A number, GPUs by number (``0,2``), or all of a node (-1); ``auto`` is one."""
    if "," in devices:
        return str(len([index for index in devices.split(",") if index.strip()]))
    return {"auto": "1", "-1": "gpu"}.get(devices, devices)
