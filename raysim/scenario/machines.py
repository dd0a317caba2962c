"""From ``train.noise`` and ``train.failures`` to what a run expects of its machines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from raysim.errors import Problem
from raysim.hardware.cluster import ClusterSpec
from raysim.scenario.documents import Document
from raysim.scenario.schema_machines import AtNodeSection, LinkSection, WindowSection
from raysim.scenario.schema_train import TrainSection
from raysim.workloads.failures import Failures
from raysim.workloads.machines import DegradedLink, Machines, SlowNode, Window

MOST_CHANGES = 64


def misfits(train: TrainSection, document: Document, cluster: ClusterSpec) -> Iterator[Problem]:
    """Nodes and NICs that the cluster does not have; an interval that nothing decides."""
    noise, nodes = train.noise, cluster.gpu_nodes
    if noise is not None:
        places: list[tuple[str, Sequence[AtNodeSection]]] = [
            ("slow_nodes", noise.slow_nodes),
            ("links", noise.links),
        ]
        for path, one in (
            (("noise", key, i), one) for key, said in places for i, one in enumerate(said)
        ):
            if one.node >= len(nodes):
                known = "only node 0" if len(nodes) == 1 else f"nodes 0 to {len(nodes) - 1}"
                message = f"there is no node {one.node}; the cluster has {known} with GPUs"
                yield document.problem((*path, "node"), message)
            elif isinstance(one, LinkSection) and (one.nic or 0) >= nodes[one.node].nic_count:
                message = f"there is no NIC {one.nic}; the node has {nodes[one.node].nic_count}"
                yield document.problem((*path, "nic"), message)
    moments = machines_of(train).changes_s()
    if len(moments) > MOST_CHANGES:
        message = f"{len(moments)} moments at which something changes, each a step to simulate; "
        message += f"at most {MOST_CHANGES}: leave out what is short or slight"
        yield document.problem(("noise",), message, key=True)
    yield from _undecided(train, document)


def _undecided(train: TrainSection, document: Document) -> Iterator[Problem]:
    random = train.failures is not None and not train.failures.times
    for path, every in (
        (("checkpoint", "every"), train.checkpoint.every),
        (("checkpoint_every",), train.checkpoint_every),
    ):
        if every == "optimal" and not random:
            message = "optimal needs a rate of failures: failures.mtbf_per_node or mtbf_per_gpu"
            yield document.problem(path, message)


def unsaved(train: TrainSection, document: Document) -> Iterator[Problem]:
    """A warning: failures, and nothing to restart from."""
    said = train.checkpoint
    saves = said.every_epoch or said.every_steps or said.every or train.checkpoint_every
    if train.failures is not None and not saves:
        message = "no checkpoint is ever saved, so each failure costs all the work before it; "
        message += "checkpoint.every: optimal chooses when"
        yield document.problem(("failures",), message, key=True)


def machines_of(train: TrainSection) -> Machines:
    """How they differ."""
    said = train.noise
    if said is None:
        return Machines()
    return Machines(
        gpu_cv=said.gpu_cv,
        step_cv=said.step_cv,
        kernel_cv=said.kernel_cv,
        slow_nodes=tuple(
            SlowNode(
                node=s.node,
                slowdown=s.slowdown,
                host_slowdown=s.host_slowdown,
                window=_window(s),
            )
            for s in said.slow_nodes
        ),
        links=tuple(
            DegradedLink(node=li.node, nic=li.nic, share=li.share, window=_window(li))
            for li in said.links
        ),
        timeout_s=said.timeout,
    )


def _window(said: WindowSection) -> Window:
    return Window(from_s=said.from_, for_s=math.inf if said.for_ is None else said.for_)


def failures_of(train: TrainSection) -> Failures | None:
    """What stops them."""
    said = train.failures
    if said is None:
        return None
    return Failures(
        mtbf_per_node_s=said.mtbf_per_node,
        mtbf_per_gpu_s=said.mtbf_per_gpu,
        times_s=tuple(sorted(said.times)),
        detect_s=said.detect,
        spare_nodes=said.spare_nodes,
        replacement_s=said.replacement,
        takes_node=said.takes_node,
        warm_up_s=said.warm_up,
    )
