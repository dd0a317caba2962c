"""Where a launcher's processes run, and what each of them finds in its environment and argv.

Real counterparts: ``parse_resource_filter`` and ``apply_num_nodes_and_gpus`` of
``deepspeed/launcher/runner.py``, ``deepspeed/launcher/launch.py`` (0.19);
``torch/distributed/elastic/agent/server/local_elastic_agent.py`` (2.13).

The cluster's nodes that have GPUs, in order, are the launcher's hosts; of a cluster without GPUs,
all nodes are. A hostfile that is not on this machine is the cluster's own and lists them all; they
are called ``localhost`` if there is one, else ``worker-0``, ``worker-1`` and so on.

Not modelled: variables that name files of torchrun's own (``TORCHELASTIC_ERROR_FILE``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from raysim.errors import ScenarioError
from raysim.rayapi.launch.commands import TORCH_PORT, Command
from raysim.raycore.ids import NodeID, node_ip


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node of the cluster, as a launcher finds it."""

    node_id: NodeID
    gpus: int
    vcpus: int
    cores: int
    """Without their second threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node with the launcher's processes."""

    machine: Machine
    slots: tuple[int, ...]
    """Their GPUs, or of a node without any their numbers."""
    on_gpus: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One process among all."""

    host: Host
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    nodes: int


def seats_of(hosts: Sequence[Host]) -> Iterator[Seat]:
    """Ranks rise by node, then by GPU."""
    world, rank = sum(len(host.slots) for host in hosts), 0
    for node_rank, host in enumerate(hosts):
        for local_rank in range(len(host.slots)):
            yield Seat(
                host=host, rank=rank, local_rank=local_rank, node_rank=node_rank,
                world_size=world, nodes=len(hosts),
            )  # fmt: skip
            rank += 1


def hosts_of(command: Command, machines: Sequence[Machine]) -> list[Host]:
    """The hosts that a command uses.

    Raises
    ------
    ScenarioError
        The cluster has not what it asks for.
    """
    with_gpus = [machine for machine in machines if machine.gpus]
    if command.kind == "deepspeed":
        if not with_gpus:
            raise ScenarioError(
                "deepspeed: Unable to proceed, no GPU resources available; name a cluster with "
                "GPUs: --cluster FILE"
            )
        return _of_deepspeed(command, with_gpus)
    if command.per_node == "cpu":
        with_gpus = []
    found = (with_gpus or list(machines))[: command.nodes]
    if len(found) < command.least_nodes:
        raise ScenarioError(
            f"{command.title} waits for {command.least_nodes} nodes, and the cluster has "
            f"{len(found)}{' with GPUs' if with_gpus else ''}"
        )
    return [_of_torchrun(command, machine, on_gpus=bool(with_gpus)) for machine in found]


def _of_torchrun(command: Command, machine: Machine, *, on_gpus: bool) -> Host:
    asked = command.per_node
    if asked == "gpu" and not on_gpus:
        raise ScenarioError("torchrun: Cuda is not available.")
    most = machine.gpus if on_gpus else machine.vcpus
    count = asked if isinstance(asked, int) else most
    if on_gpus and count > most:
        raise ScenarioError(
            f"{command.title} would start {count} processes on a node of {most} GPUs: each takes "
            "the GPU of its LOCAL_RANK"
        )
    return Host(machine=machine, slots=tuple(range(count)), on_gpus=on_gpus)


def _of_deepspeed(command: Command, machines: Sequence[Machine]) -> list[Host]:
    slots = _hostfile(command, machines)
    machine_of = dict(zip(slots, machines, strict=False))
    slots = _filtered(command, slots)
    if len(slots) < command.least_nodes:
        raise ScenarioError(
            f"deepspeed: --num_nodes {command.least_nodes}, and the cluster has {len(slots)} nodes "
            "with GPUs"
        )
    hosts = []
    for name in list(slots)[: command.nodes]:
        machine = machine_of[name]
        used = list(range(command.per_node)) if isinstance(command.per_node, int) else slots[name]
        if max(used) >= machine.gpus:
            raise ScenarioError(f"deepspeed: {name} has {machine.gpus} GPUs, not {max(used) + 1}")
        hosts.append(Host(machine=machine, slots=tuple(used), on_gpus=True))
    return hosts


def _hostfile(command: Command, machines: Sequence[Machine]) -> dict[str, list[int]]:
    """Slots by host's name, in order."""
    file = Path(command.hostfile) if command.hostfile else None
    if file is None or not file.is_file():
        single = len(machines) == 1 and not command.hostfile
        names = ["localhost"] if single else [f"worker-{i}" for i in range(len(machines))]
        return {n: list(range(m.gpus)) for n, m in zip(names, machines, strict=True)}
    found: dict[str, list[int]] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = re.match(r"(\S+)\s+slots=(\d+)", text)
        if match is None or match[1] in found:
            raise ScenarioError(f"{file}:{number}   expected HOST slots=N, each host once: {text}")
        found[match[1]] = list(range(int(match[2])))
    if len(found) > len(machines):
        raise ScenarioError(
            f"{file} lists {len(found)} hosts, and the cluster has {len(machines)} nodes with GPUs"
        )
    return found


def _filtered(command: Command, slots: dict[str, list[int]]) -> dict[str, list[int]]:
    """After ``--include`` or ``--exclude``: ``NAME[:SLOT[,SLOT ...]][@NAME ...]``."""
    text = command.include or command.exclude
    if not text:
        return slots
    named: dict[str, list[int]] = {}
    for each in text.split("@"):
        name, _, listed = each.partition(":")
        if name not in slots:
            known = ", ".join(slots)
            raise ScenarioError(f"deepspeed: Hostname {name!r} not found; known are {known}")
        try:
            chosen = sorted({int(slot) for slot in listed.split(",")}) if listed else slots[name]
        except ValueError:
            raise ScenarioError(f"deepspeed: {each!r} is not NAME:SLOT,SLOT") from None
        for slot in chosen:
            if slot not in slots[name]:
                raise ScenarioError(f"deepspeed: No slot '{slot}' specified on host {name!r}")
        named[name] = chosen
    if command.exclude:
        named = {n: [s for s in all_ if s not in named.get(n, ())] for n, all_ in slots.items()}
    kept = {n: named[n] for n in slots if named.get(n)}
    if not kept:
        raise ScenarioError(f"deepspeed: nothing is left by {text!r}")
    return kept


def environment(command: Command, seat: Seat, first: NodeID) -> dict[str, str]:
    """What a process finds in its environment beside the launcher's own; ``first`` has rank 0."""
    if command.kind == "python":
        return {}
    here = len(seat.host.slots)
    if command.kind == "deepspeed":
        several = seat.nodes > 1 or command.multi or command.hostfile
        address = (command.master_addr or node_ip(first)) if several else "127.0.0.1"
        return _strings({
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, seat.host.slots)), "MASTER_ADDR": address,
            "MASTER_PORT": command.master_port, "WORLD_SIZE": seat.world_size,
            "CROSS_RANK": seat.node_rank, "CROSS_SIZE": seat.nodes, "LOCAL_SIZE": here,
            "RANK": seat.rank, "LOCAL_RANK": seat.local_rank,
            **({"OMP_NUM_THREADS": _cores_of_each(command, seat)} if command.binds_cores else {}),
        })  # fmt: skip
    threads = {"OMP_NUM_THREADS": 1} if here > 1 else {}
    return _strings({
        **threads, "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "RANK": seat.rank, "GROUP_RANK": seat.node_rank, "ROLE_RANK": seat.rank,
        "ROLE_NAME": "default", "LOCAL_WORLD_SIZE": here, "WORLD_SIZE": seat.world_size,
        "GROUP_WORLD_SIZE": seat.nodes, "ROLE_WORLD_SIZE": seat.world_size,
        "MASTER_ADDR": command.master_addr or node_ip(first),
        "MASTER_PORT": command.master_port or TORCH_PORT, "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": command.max_restarts, "TORCHELASTIC_RUN_ID": command.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": True, "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
        "LOCAL_RANK": seat.local_rank, **dict(command.environ),
    })  # fmt: skip


def _cores_of_each(command: Command, seat: Seat) -> int:
    """As ``deepspeed/utils/numa.py`` shares them out."""
    cores, here = seat.host.machine.cores, len(seat.host.slots)
    if command.core_list:
        try:
            ends = [[int(n) for n in part.split("-")] for part in command.core_list.split(",")]
        except ValueError:
            raise ScenarioError(
                f"deepspeed: --bind_core_list {command.core_list!r} is not such as 0,2-5"
            ) from None
        cores = sum(last[-1] - last[0] + 1 for last in ends)
    if cores < here:
        raise ScenarioError("deepspeed: At least one core needs to be assigned to each rank")
    return cores // here


def _strings(values: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def arguments(command: Command, file: Path, seat: Seat) -> list[str]:
    """``sys.argv`` of a process."""
    first = str(file.resolve()) if command.module else command.script
    told = [f"{command.local_rank}={seat.local_rank}"] if command.local_rank else []
    return [first, *told, *command.args]
