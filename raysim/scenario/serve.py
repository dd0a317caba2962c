"""A ``serve`` section as a spec of ``workloads.serve_job``."""

from __future__ import annotations

from pathlib import Path

from raysim.errors import ScenarioError
from raysim.raylibs.serve.config import (
    ApplicationConfig,
    AutoscalingConfig,
    BatchConfig,
    DeploymentConfig,
    MultiplexConfig,
    Work,
)
from raysim.raylibs.serve.load import ClosedLoop, Load, OpenLoop
from raysim.scenario.documents import Document, KeyPath
from raysim.scenario.schema_serve import DeploymentSection, ServeLoadSection, ServeSection
from raysim.scenario.serve_config import deployments_of
from raysim.workloads.serve_job import Redeploy, ServeJob


def read_serve(
    said: ServeSection, at: KeyPath, folder: Path, document: Document,
    inputs: dict[KeyPath, Path],
) -> ServeJob:  # fmt: skip
    """The job.

    Raises
    ------
    ScenarioError
        A deployment is named that is not there or twice, or calls go round in a circle; the config
        file is absent or wrong.
    """
    if said.config is not None:
        file = folder / said.config
        inputs[*at, "config"] = file
        deployments = deployments_of(file, said.application, said.deployments)
        said = said.model_copy(update={"deployments": deployments})
    _check_names(said, at, document)
    job = ServeJob(
        app=ApplicationConfig(
            ingress=said.ingress or said.deployments[0].name,
            deployments=tuple(_deployment(d) for d in said.deployments),
        ),
        load=_load(said.load),
        stack=said.options,
        models=said.load.models,
        redeploys=tuple(Redeploy(deployment=r.deployment, at_s=r.at) for r in said.redeploys),
        fidelity=said.fidelity,
    )
    if said.fidelity == "flow" and job.why_not_flow:
        raise _wrong(document, (*at, "fidelity"), job.why_not_flow)
    return job


def _check_names(said: ServeSection, at: KeyPath, document: Document) -> None:
    known: dict[str, list[str]] = {}
    for i, d in enumerate(said.deployments):
        if d.name in known:
            raise _wrong(document, (*at, "deployments", i, "name"), f"{d.name} is there twice")
        known[d.name] = [callee for group in d.work.calls for callee in group]
    for i, d in enumerate(said.deployments):
        for callee in known[d.name]:
            where = (*at, "deployments", i, "work", "calls")
            if callee not in known:
                raise _wrong(document, where, f"no deployment {callee}; {_list(known)}")
            if d.name in _reached(callee, known):
                raise _wrong(document, where, f"{d.name} calls itself through {callee}")
    if said.ingress is not None and said.ingress not in known:
        raise _wrong(document, (*at, "ingress"), f"no deployment {said.ingress}; {_list(known)}")
    for i, r in enumerate(said.redeploys):
        if r.deployment not in known:
            where = (*at, "redeploys", i, "deployment")
            raise _wrong(document, where, f"no deployment {r.deployment}; {_list(known)}")


def _reached(name: str, calls: dict[str, list[str]]) -> dict[str, None]:
    found: dict[str, None] = {}
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found[one] = None
            waiting += calls.get(one, [])
    return found


def _list(known: dict[str, list[str]]) -> str:
    return f"there are {', '.join(known)}"


def _wrong(document: Document, where: KeyPath, message: str) -> ScenarioError:
    return ScenarioError(document.problem(where, message))


def _deployment(said: DeploymentSection) -> DeploymentConfig:
    w, auto, batch, group = said.work, said.autoscaling_config, said.batch, said.placement_group
    multi = said.multiplexed
    resources = {"CPU": said.num_cpus, "GPU": said.num_gpus, **said.resources}
    return DeploymentConfig(
        name=said.name,
        num_replicas=said.num_replicas,
        max_ongoing_requests=said.max_ongoing_requests,
        max_queued_requests=said.max_queued_requests,
        autoscaling=None if auto is None else AutoscalingConfig(**auto.model_dump()),
        resources={name: amount for name, amount in resources.items() if amount},
        placement_group_bundles=() if group is None else tuple(group.bundles),
        placement_group_strategy="PACK" if group is None else group.strategy,
        graceful_shutdown_timeout_s=said.graceful_shutdown_timeout_s,
        health_check_period_s=said.health_check_period_s,
        request_router=said.request_router,
        batch=None if batch is None else BatchConfig(**batch.model_dump()),
        multiplex=None if multi is None else MultiplexConfig(
            max_num_models_per_replica=multi.max_num_models_per_replica, load_s=multi.load
        ),
        constructor_s=said.constructor,
        work=Work(
            python_s=w.python, busy_s=w.busy, per_item_busy_s=w.per_item, wait_s=w.wait, cv=w.cv,
            calls=tuple(tuple(group) for group in w.calls), chunks=w.chunks,
            chunk_interval_s=w.chunk_interval, fails_frac=w.fails,
        ),
    )  # fmt: skip


def _load(said: ServeLoadSection) -> Load:
    if said.users is not None:
        return ClosedLoop(users=said.users, think_s=said.think, duration_s=said.lasting)
    steps = ((0.0, said.rate),) if said.rate is not None else ()
    return OpenLoop(
        rate=steps or tuple((s.at, s.rate) for s in said.steps), duration_s=said.lasting
    )
