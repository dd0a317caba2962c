"""Calls of tasks and actors, their arguments and results, waiting, the GCS's store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from raysim.measure.ray_core.probe import Probe, server, timed, while_time
from raysim.measure.session import repeat, stopwatch

LEASE = "raylet_lease_ns raylet_pop_worker_ns raylet_return_ns io_lease_reply_ns"
HOP = "grpc_same_host_ns execute_ns"
BATCH = 1000
ACTORS = 10
"""Called for the first time."""
FUNCTIONS = 30
CALLS = 3
"""Of each of them: the third says when the second had its answer."""


def probes(*, quick: bool) -> Iterator[Probe]:
    """Calls one after the other, in batches, with arguments, with results; waits; the KV store."""
    batch = 20 if quick else BATCH
    yield Probe(op="actor_call_sync", measure=_actor_sync, informs=f"submit_actor_task_ns {HOP}")
    yield Probe(op="task_sync", measure=_task_sync, informs=f"submit_task_ns {LEASE} {HOP}")
    for kind in ("actor", "task"):
        submit = "submit_actor_task_ns" if kind == "actor" else "submit_task_ns"
        for op, informs in (
            (f"{kind}_submit", submit),
            (f"{kind}_calls_async", f"{submit} io_submit_ns io_reply_ns execute_ns get_ns"),
        ):
            yield Probe(op=op, measure=partial(_batch, kind), count=batch, informs=informs)
    yield Probe(
        op="async_actor_calls_async", measure=partial(_batch, "async_actor"), count=batch,
        informs="execute_async_ns execute_async_wait_ns",
    )  # fmt: skip
    yield Probe(op="connect", measure=_connect, informs="connect_ns")
    yield Probe(op="export_function", measure=_export, informs="export_function_ns")
    yield Probe(op="import_function", measure=_import, informs="import_function_ns gcs_kv_ns")
    yield Probe(op="generator_item", measure=_items, count=batch, informs="generator_item_ns")
    for count in (0, 4) if quick else (0, 10, 100, 1000):
        yield Probe(op="call_with_args", measure=_args, count=count, informs="per_arg_ns")
    for count in (1, 4) if quick else (1, 10, 100, 1000):
        yield Probe(
            op="call_with_returns", measure=_returns, count=count,
            informs="per_return_ns per_ref_get_ns",
        )  # fmt: skip
    for count in (1, 10) if quick else (1, 100, 1000):
        yield Probe(op="wait", measure=_wait, count=count, informs="wait_ns per_ref_wait_ns")
    yield Probe(op="kv_put", measure=_kv_put, informs="gcs_kv_ns grpc_same_host_ns")
    for count in (1, 2):
        yield Probe(
            op="compiled_graph", measure=_graph, count=count,
            informs="channel_wake_ns channel_execute_ns channel_get_ns channel_task_ns",
        )  # fmt: skip


@contextmanager
def _actor(*, is_async: bool = False) -> Iterator[Any]:
    import ray

    actor = server(is_async=is_async)
    try:
        yield actor
    finally:
        ray.kill(actor)


def _actor_sync(probe: Probe, allowed_s: float) -> list[float]:  # noqa: ARG001
    import ray

    with _actor() as actor:
        return repeat(stopwatch(lambda: ray.get(actor.no_op.remote())), allowed_s, most=1000)


def _no_op() -> Any:
    import ray

    @ray.remote
    def no_op() -> bytes:
        return b"ok"

    ray.get([no_op.remote() for _ in range(4)])
    return no_op


def _task_sync(probe: Probe, allowed_s: float) -> list[float]:  # noqa: ARG001
    import ray

    no_op = _no_op()
    return repeat(stopwatch(lambda: ray.get(no_op.remote())), allowed_s, most=1000)


def _batch(kind: str, probe: Probe, allowed_s: float) -> list[float]:
    """Seconds per call: of ``.remote()`` alone, or until the last result is here."""
    import ray

    with _actor(is_async=kind == "async_actor") as actor:
        call = _no_op() if kind == "task" else actor.no_op

        def once() -> float:
            start = time.perf_counter()
            refs = [call.remote() for _ in range(probe.count)]
            submitted = time.perf_counter()
            ray.get(refs)
            end = submitted if probe.op.endswith("submit") else time.perf_counter()
            return (end - start) / probe.count

        once()
        return while_time(once, allowed_s)


def _connect(probe: Probe, allowed_s: float) -> list[float]:  # noqa: ARG001
    """What a process's first call of an actor takes longer than its second.

    Others have called the actor before, so that it is up; the process asks the GCS where it is.
    """
    import ray

    @ray.remote
    def calls(actors: list[Any]) -> list[float]:
        began_s = []
        for actor in actors:
            for _ in range(CALLS):
                began_s.append(time.perf_counter())
                ray.get(actor.no_op.remote())
        return began_s

    actors = [server() for _ in range(ACTORS + 1)]
    ray.get([actor.no_op.remote() for actor in actors])
    try:
        began_s = ray.get(cast("Any", calls).remote(actors))
    finally:
        for actor in actors:
            ray.kill(actor)
    later = range(CALLS, len(began_s), CALLS)  # the process's very first finds more to do
    return [2 * began_s[i + 1] - began_s[i] - began_s[i + 2] for i in later]


def _fresh() -> Any:
    """A function that no process has seen."""
    import ray

    @ray.remote
    def no_op() -> bytes:
        return b"ok"

    return no_op


def _export(probe: Probe, allowed_s: float) -> list[float]:  # noqa: ARG001
    """What a process's thread works more for its first call of a function than for its second."""
    import ray

    def once() -> float:
        function, worked_s = _fresh(), []
        for _ in range(2):
            began_s = time.thread_time()
            ref = function.remote()
            worked_s.append(time.thread_time() - began_s)
            ray.get(ref)
        return worked_s[0] - worked_s[1]

    return while_time(once, allowed_s, most=FUNCTIONS)


def _import(probe: Probe, allowed_s: float) -> list[float]:  # noqa: ARG001
    """How much longer the first result of a function takes, once submitted, than later ones.

    The GCS's answer is in it.
    """
    import ray

    def once() -> float:
        function = _fresh()
        first_s, *later_s = (timed(partial(ray.get, function.remote())) for _ in range(CALLS))
        return first_s - min(later_s)

    return while_time(once, allowed_s, most=FUNCTIONS)


def _items(probe: Probe, allowed_s: float) -> list[float]:
    """What the main thread of a generator's process works for one of ``count`` small items."""
    import ray

    @ray.remote
    def items(count: int) -> Any:
        began_s = time.thread_time()
        yield from range(count)
        yield (time.thread_time() - began_s) / count

    def once() -> float:
        found = [ray.get(ref) for ref in cast("Any", items).remote(probe.count)]
        return float(found[-1])

    once()
    return while_time(once, allowed_s)


def _args(probe: Probe, allowed_s: float) -> list[float]:
    """A call with ``count`` small integers."""
    import ray

    with _actor() as actor:
        arguments = range(probe.count)
        return repeat(stopwatch(lambda: ray.get(actor.no_op.remote(*arguments))), allowed_s)


def _returns(probe: Probe, allowed_s: float) -> list[float]:
    """A call with ``count`` results, all of which are fetched."""
    import ray

    with _actor() as actor:
        method = actor.many.options(num_returns=probe.count)
        return repeat(stopwatch(lambda: ray.get(method.remote(probe.count))), allowed_s)


def _wait(probe: Probe, allowed_s: float) -> list[float]:
    """``ray.wait`` for all of ``count`` results that are there."""
    import ray

    with _actor() as actor:
        refs = [actor.no_op.remote() for _ in range(probe.count)]
        ray.get(refs)
        wait = partial(ray.wait, refs, num_returns=len(refs), fetch_local=False)
        return repeat(stopwatch(wait), allowed_s)


def _kv_put(probe: Probe, allowed_s: float) -> list[float]:  # noqa: ARG001
    from ray.experimental.internal_kv import _internal_kv_put

    put: Callable[..., object] = _internal_kv_put
    work = partial(put, b"raysim_measure", b"ok", overwrite=True)
    return repeat(stopwatch(work), allowed_s)


def _graph(probe: Probe, allowed_s: float) -> list[float]:
    """A compiled graph of ``count`` methods of one actor: execute and get."""
    import ray
    from ray.dag import InputNode

    with _actor() as actor:
        with InputNode() as node:
            for _ in range(probe.count):
                node = actor.no_op.bind(node)  # noqa: PLW2901  (a chain)
        graph = node.experimental_compile()
        try:
            timed(lambda: ray.get(graph.execute(1)))
            return repeat(stopwatch(lambda: ray.get(graph.execute(1))), allowed_s)
        finally:
            graph.teardown()
