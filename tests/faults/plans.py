"""From one number: a cluster, a program for it and what is done to it. All of it is plain data.

A step refers to what earlier steps made by any number, taken modulo what there is, so that every
subset of steps and faults is a plan too; that is what ``shrink`` relies on.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

MB = 1_000_000
SMALL = (10, 100, 50_000)
LARGE = (200_000, 5 * MB, 20 * MB, 45 * MB)
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


class Step(NamedTuple):
    """One statement of the driver's program."""

    number: int
    op: str
    options: dict[str, Any]

    def __str__(self) -> str:
        said = ", ".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.number:3} {self.op}({said})"


class Fault(NamedTuple):
    """One thing that is done to the cluster."""

    at_ms: int
    what: str
    node: int
    share: float
    for_ms: int
    """Until it is undone, if it is."""

    def __str__(self) -> str:
        return (
            f"{self.at_ms / 1000:8.3f} s  {self.what} node {self.node}"
            f" (share {self.share}, for {self.for_ms / 1000} s)"
        )


class Plan(NamedTuple):
    """Everything a run depends on."""

    seed: int
    nodes: int
    cpus: int
    store_mb: int
    steps: tuple[Step, ...]
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        head = f"seed {self.seed}: {self.nodes} nodes, {self.cpus} cpus, {self.store_mb} MB stores"
        return "\n".join((head, "program:", *map(str, self.steps), "faults:",
                          *map(str, self.faults)))  # fmt: skip


def plan(seed: int) -> Plan:
    """The plan of a seed."""
    r = Random(seed)
    nodes = r.randint(2, 5)
    cpus = r.randint(2, 4)
    n_steps = r.randint(3, 22)
    maker = _Maker(r, nodes, cpus)
    steps = tuple(maker.step(i) for i in range(n_steps))
    n_faults = r.choice((0, 1, 1, 2, 3, 4))
    faults = tuple(sorted(_fault(r, nodes) for _ in range(n_faults)))
    return Plan(seed, nodes, cpus, r.choice((60, 100, 250)), steps, faults)


FAULTS = (
    ("kill_worker", 6), ("kill_raylet", 2), ("fail_node", 2), ("partition", 2), ("slow_links", 2),
    ("fill_disk", 2), ("preempt", 2), ("kill_gcs", 2), ("kill_driver", 1), ("kill_head_raylet", 1),
    ("kill_io_worker", 1), ("partition_head", 1),
)  # fmt: skip


def _fault(r: Random, nodes: int) -> Fault:
    what = r.choices([k for k, _ in FAULTS], [w for _, w in FAULTS])[0]
    anywhere = what in ("kill_worker", "fill_disk", "slow_links", "kill_io_worker")
    node = r.randrange(nodes) if anywhere else r.randint(1, nodes - 1)
    if "head" in what or what in ("kill_driver", "kill_gcs"):
        node = 0
    at_ms = int(min(r.expovariate(1 / 4000), 60_000)) + r.choice((0, 600, 900))
    for_ms = r.choice((50, 1_000, 8_000, 30_000, 80_000))
    if what == "kill_gcs":
        for_ms = min(for_ms, 30_000)
    return Fault(at_ms, what, node, r.choice((0.005, 0.05, 0.3)), for_ms)


class _Maker:
    """Draws steps; what is held for long never takes the last CPU of a node."""

    def __init__(self, r: Random, nodes: int, cpus: int) -> None:
        self.r = r
        self.nodes = nodes
        self.held = cpus - 1

    def step(self, number: int) -> Step:
        ops = {
            "task": 10, "put": 4, "get": 5, "wait": 2, "drop": 3, "sleep": 2, "actor": 2, "call": 6,
            "kill": 1, "drop_actor": 1, "stream": 2, "group": 1, "group_task": 2,
            "remove_group": 1, "cancel": 1,
        }  # fmt: skip
        op = self.r.choices(list(ops), list(ops.values()))[0]
        return Step(number, op, getattr(self, f"_{op}")())

    def _pick(self) -> int:
        return self.r.randrange(1000)

    def _picks(self, most: int) -> list[int]:
        return [self._pick() for _ in range(self.r.randint(0, most))]

    def _size(self) -> int:
        return self.r.choice(SMALL if self.r.random() < 0.6 else LARGE)

    def _ms(self) -> int:
        return self.r.choice((0, 0, 1, 10, 200, 1500))

    def _timeout(self) -> int | None:
        return self.r.choice((None, None, None, 0, 100, 3000, 20_000))

    def _work(self) -> dict[str, Any]:
        """What any body does."""
        kinds = {"leaf": 8, "nest": 3, "puts": 2, "spawn": 2, "raise": 1, "exit": 1, "call": 1}
        return {
            "kind": self.r.choices(list(kinds), list(kinds.values()))[0],
            "args": self._picks(3), "boxed": self._picks(2) if self.r.random() < 0.4 else [],
            "ms": self._ms(), "compute": self.r.random() < 0.2, "size": self._size(),
            "children": self.r.randint(1, 3), "depth": self.r.choice((1, 1, 2)),
            "actor": self._pick(), "pass_on": self.r.random() < 0.3,
        }  # fmt: skip

    def _task(self) -> dict[str, Any]:
        r = self.r
        strategy = r.choice(("DEFAULT", "DEFAULT", "DEFAULT", "SPREAD", "soft", "hard"))
        return self._work() | {
            "cpus": r.choice((1, 1, 0.5, 0)), "retries": r.choice((0, 1, 3, 3, -1)),
            "returns": r.choice((1, 1, 1, 2, 3)), "strategy": strategy,
            "node": r.randrange(self.nodes), "retry_exceptions": r.random() < 0.2,
        }  # fmt: skip

    def _put(self) -> dict[str, Any]:
        return {"size": self._size(), "boxed": self._picks(2) if self.r.random() < 0.2 else []}

    def _get(self) -> dict[str, Any]:
        return {"refs": [self._pick(), *self._picks(3)], "timeout": self._timeout()}

    def _wait(self) -> dict[str, Any]:
        return {
            "refs": [self._pick(), *self._picks(4)], "n": self.r.randint(1, 3),
            "timeout": self.r.choice((0, 10, 1000, 10_000)), "fetch": self.r.random() < 0.7,
        }  # fmt: skip

    def _drop(self) -> dict[str, Any]:
        return {"ref": self._pick()}

    def _sleep(self) -> dict[str, Any]:
        return {"ms": self.r.choice((1, 100, 1000, 4000, 70_000))}

    def _actor(self) -> dict[str, Any]:
        r = self.r
        cpus = r.choice((0, 0, 1))
        if cpus > self.held:
            cpus = 0
        self.held -= cpus
        return {
            "cpus": cpus, "max_restarts": r.choice((0, 0, 1, 3, -1)), "ms": self._ms(),
            "task_retries": r.choice((0, 0, 2, -1)), "concurrency": r.choice((1, 1, 1, 3)),
            "async": r.random() < 0.2, "args": self._picks(1), "raises": r.random() < 0.05,
            "named": r.random() < 0.2,
        }  # fmt: skip

    def _call(self) -> dict[str, Any]:
        kinds = {"leaf": 8, "nest": 2, "puts": 1, "spawn": 1, "raise": 1, "exit": 1, "keep": 2,
                 "read": 2, "leave": 1}  # fmt: skip
        kind = self.r.choices(list(kinds), list(kinds.values()))[0]
        return self._work() | {"on": self._pick(), "kind": kind, "returns": 1}

    def _kill(self) -> dict[str, Any]:
        return {"on": self._pick(), "no_restart": self.r.random() < 0.5}

    def _drop_actor(self) -> dict[str, Any]:
        return {"on": self._pick()}

    def _stream(self) -> dict[str, Any]:
        items = self.r.randint(0, 6)
        return {
            "items": items, "size": self._size(), "ms": self._ms(),
            "backpressure": self.r.choice((-1, -1, 1, 3)), "read": self.r.randint(0, 8),
            "args": self._picks(1), "retries": self.r.choice((0, 3)),
            "boxed": self._picks(1), "raises": self.r.random() < 0.15,
        }  # fmt: skip

    def _group(self) -> dict[str, Any]:
        n = self.r.randint(1, 2)
        if n > self.held:
            n = 0
        self.held -= n
        return {
            "bundles": n, "strategy": self.r.choice(STRATEGIES),
            "timeout": self.r.choice((0, 100, 3000, 30_000)),
        }  # fmt: skip

    def _group_task(self) -> dict[str, Any]:
        return self._work() | {
            "on": self._pick(), "index": self.r.choice((-1, 0, 1)), "kind": "leaf", "returns": 1,
            "retries": self.r.choice((0, 3)), "timeout": self.r.choice((100, 3000)),
        }  # fmt: skip

    def _remove_group(self) -> dict[str, Any]:
        return {"on": self._pick()}

    def _cancel(self) -> dict[str, Any]:
        return {
            "ref": self._pick(), "force": self.r.random() < 0.3, "recursive": self.r.random() < 0.7
        }  # fmt: skip
