"""``ray.serve`` in programs: what requests take, how it scales, what is refused, what is said.

What it answers is compared with the real Ray (``tests/conformance/programs/serve_*.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from raysim.rayapi.loader import run_program
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.report import LibraryReport
from tests.rayapi_parts import run
from tests.raycore_parts import ray_cluster


def played(main: Callable[[], Any], **cluster: Any) -> tuple[Any, list[LibraryReport]]:
    """What a driver returns, and what is reported of Serve."""
    made = ray_cluster(**({"cpus": 16} | cluster))
    value, _ = run_program(main, made)
    return value, [r for r in made.env.reports if r.kind == "serve"]


def test_a_call_takes_its_hops_and_what_the_method_takes() -> None:
    """Proxy, replica and handle cost a few milliseconds; the method sleeps for 100."""

    def main() -> list[float]:
        from ray import serve

        @serve.deployment
        def nap() -> str:
            time.sleep(0.1)
            return "rested"

        handle = serve.run(nap.bind())
        taken = []
        for _ in range(20):
            began_s = time.perf_counter()
            handle.remote().result()
            taken.append(time.perf_counter() - began_s)
        return taken

    taken, _ = played(main)
    assert all(0.1 < t < 0.2 for t in taken)
    assert 0.1015 < sorted(taken)[10] < 0.105


def test_threads_of_a_replica_go_on_side_by_side_up_to_its_limit() -> None:
    """Ten sleeps of a second, five at a time."""

    def main() -> float:
        from ray import serve

        @serve.deployment(max_ongoing_requests=5)
        def nap() -> None:
            time.sleep(1)

        handle = serve.run(nap.bind())
        began_s = time.perf_counter()
        for response in [handle.remote() for _ in range(10)]:
            response.result()
        return time.perf_counter() - began_s

    taken_s, _ = played(main)
    # a router that was refused looks again after half a second at most, perhaps for an older call:
    # real Ray 2.60 took 2.3, 2.8 and 3.3 s
    assert 2.0 < taken_s < 3.4


def test_replicas_share_the_calls() -> None:
    def main() -> tuple[float, set[str]]:
        from ray import serve

        @serve.deployment(num_replicas=4, max_ongoing_requests=1)
        class Worker:
            def __call__(self) -> str:
                time.sleep(1)
                return str(serve.get_replica_context().replica_tag)

        handle = serve.run(Worker.bind())
        began_s = time.perf_counter()
        tags = {r.result() for r in [handle.remote() for _ in range(4)]}
        return time.perf_counter() - began_s, tags

    (taken_s, tags), _ = played(main)
    assert len(tags) == 4
    assert taken_s < 1.7


def test_a_deployment_scales_with_its_load_and_back() -> None:
    """Eight callers at once, two wanted per replica: four replicas after the upscale delay."""

    def main() -> tuple[int, int]:
        from ray import serve

        @serve.deployment(
            max_ongoing_requests=10,
            autoscaling_config={
                "min_replicas": 1, "max_replicas": 6, "target_ongoing_requests": 2,
                "upscale_delay_s": 5, "downscale_delay_s": 20, "look_back_period_s": 5,
                "metrics_interval_s": 1,
            },
        )  # fmt: skip
        async def nap() -> None:
            await asyncio.sleep(1)

        handle = serve.run(nap.bind())

        def replicas() -> int:
            state = serve.status().applications["default"].deployments["nap"]
            return int(state.replica_states.get("RUNNING", 0))

        end_s = time.time() + 60
        while time.time() < end_s:
            for response in [handle.remote() for _ in range(8)]:
                response.result()
        busy = replicas()
        time.sleep(120)
        return busy, replicas()

    (busy, idle), _ = played(main)
    assert busy == 4
    assert idle == 1


def test_a_node_that_dies_takes_its_replica_and_a_new_one_comes() -> None:
    def main() -> tuple[str, str]:
        import ray
        from ray import serve

        @serve.deployment(health_check_period_s=1)
        class Where:
            def __call__(self) -> str:
                return str(ray.get_runtime_context().get_node_id())

            def die(self) -> None:
                import os

                os._exit(1)

        handle = serve.run(Where.bind())
        first = handle.remote().result()
        with pytest.raises(ray.exceptions.ActorDiedError):
            handle.die.remote().result()
        return first, handle.remote().result()

    (first, second), _ = played(main)
    assert first == second  # there is only one node


def test_async_clients_and_httpx_reach_it() -> None:
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("starlette")

    def main() -> tuple[list[Any], int]:
        from ray import serve

        @serve.deployment(max_ongoing_requests=100)
        async def echo(request: Any) -> dict[str, Any]:
            await asyncio.sleep(0.5)
            return {"x": int(request.query_params["x"])}

        serve.run(echo.bind())

        async def ask() -> list[Any]:
            async with httpx.AsyncClient() as client:
                replies = await asyncio.gather(
                    *[client.get(f"http://localhost:8000/?x={i}") for i in range(5)]
                )
            return [r.json()["x"] for r in replies]

        began_s = time.perf_counter()
        answers = asyncio.run(ask())
        assert time.perf_counter() - began_s < 0.6
        return answers, int(httpx.get("http://localhost:8000/?x=7").status_code)

    (answers, status), _ = played(main)
    assert answers == [0, 1, 2, 3, 4]
    assert status == 200


def test_what_requests_came_to_is_reported() -> None:
    def main() -> None:
        from ray import serve

        @serve.deployment
        def nap() -> None:
            time.sleep(0.2)

        handle = serve.run(nap.bind(), name="naps")
        for _ in range(10):
            handle.remote().result()

    _, (report,) = played(main)
    assert report.ok
    assert "10" in report.text
    assert report.metrics["latency_p50"] == pytest.approx(0.2035, abs=0.003)
    assert report.metrics["replicas_mean"] == pytest.approx(1.0, rel=1e-3)


def test_an_application_nobody_asks_has_no_latencies() -> None:
    def main() -> None:
        from ray import serve

        @serve.deployment
        def idle() -> str:
            return "rested"

        serve.run(idle.bind())  # and ends at once: its replica was there for no time

    _, (report,) = played(main)
    assert report.text.startswith("no requests came; ")
    assert report.bound_by == "Nothing: no requests came."
    assert report.would_help == report.warnings == ()
    (deployments,) = report.tables
    assert deployments.rows[0][3:5] == (0.0, 0.0)  # thread busy, slots taken


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ({"request_router_config": {"request_router_class": "x"}}, "request_router_config"),
        ({"max_replicas_per_node": 1}, "max_replicas_per_node"),
    ],
)
def test_options_that_are_not_emulated_are_refused_by_name(what: dict[str, Any], name: str) -> None:
    def main() -> None:
        from ray import serve

        serve.deployment(**what)

    with pytest.raises(NotEmulatedError, match=name):
        run(main)


def test_serving_for_ever_ends_when_nobody_is_left_who_would_ask() -> None:
    """A thread of the program goes on to its end; what stands behind the call is not reached."""
    seen: list[str] = []

    def main() -> None:
        import threading

        import ray
        from ray import serve

        ray.init()

        @serve.deployment
        def echo(text: str) -> str:
            return text

        def ask() -> None:
            time.sleep(60)
            seen.append(serve.get_app_handle("default").remote("hello").result())

        threading.Thread(target=ask).start()
        serve.run(echo.bind(), blocking=True)
        seen.append("never")

    with pytest.raises(SystemExit) as stop:
        run(main)
    assert (stop.value.code, seen) == (0, ["hello"])


def test_a_copy_of_autoscaling_takes_other_bounds() -> None:
    def main() -> tuple[int, int, int]:
        from ray.serve.config import AutoscalingConfig

        few = AutoscalingConfig(min_replicas=2, max_replicas=4)
        many = few.model_copy(update={"max_replicas": 40})
        return few.max_replicas, many.max_replicas, many.min_replicas

    assert run(main) == (4, 40, 2)


def test_an_unknown_option_is_a_type_error() -> None:
    def main() -> None:
        from ray import serve

        serve.deployment(replicas=2)

    with pytest.raises(TypeError, match="replicas"):
        run(main)


def test_another_port_is_nobody_s() -> None:
    """Only what is asked of Serve's port goes there: the rest meets the real machine."""
    import requests

    def main() -> None:
        from ray import serve

        @serve.deployment
        def echo() -> str:
            return "here"

        serve.start(http_options={"port": 8123})
        serve.run(echo.bind())
        assert requests.get("http://127.0.0.1:8123/", timeout=1).text == "here"
        requests.get("http://127.0.0.1:1/", timeout=1)

    with pytest.raises(requests.ConnectionError):
        played(main)


def test_run_looks_every_second_and_applications_share_a_controller() -> None:
    """``CLIENT_POLLING_INTERVAL_S``, from a tenth of a second or two on; no proxy is wanted."""

    def main() -> tuple[float, list[str]]:
        from ray import serve
        from ray.util.state import list_actors

        @serve.deployment
        def answer() -> int:
            return 1

        serve.start(http_options={"location": "NoServer"})
        serve.run(answer.bind(), name="first", route_prefix="/first")
        began_s = time.perf_counter()
        handle = serve.run(answer.bind(), name="second", route_prefix="/second")
        took_s = time.perf_counter() - began_s
        assert handle.remote().result() == 1
        return took_s, sorted(a.class_name.rpartition(".")[2] for a in list_actors())

    (took_s, actors), _ = played(main)
    assert took_s >= 1.0, "a worker starts and imports Serve"
    assert 0.1 <= took_s % 1.0 < 0.25
    assert actors == ["ServeController", "ServeReplica", "ServeReplica"]


def test_grpc_responses_stream_and_end_with_their_status() -> None:
    """Messages come one by one; what the method sets last is what the client finds."""
    grpc = pytest.importorskip("grpc")
    wrappers = pytest.importorskip("google.protobuf.wrappers_pb2")

    def add(servicer: Any, server: Any) -> None:
        kind = grpc.unary_stream_rpc_method_handler
        handler = kind(servicer.Count, request_deserializer=wrappers.Int64Value.FromString)
        made = grpc.method_handlers_generic_handler("test.Counting", {"Count": handler})
        server.add_generic_rpc_handlers((made,))

    def main() -> list[Any]:
        from ray import serve
        from ray.serve.config import gRPCOptions

        @serve.deployment
        class Counting:
            def Count(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
                for number in range(request.value):
                    time.sleep(0.1)
                    yield wrappers.Int64Value(value=number)
                grpc_context.set_code(grpc.StatusCode.DATA_LOSS)
                grpc_context.set_trailing_metadata([("count", str(request.value))])

        serve.start(grpc_options=gRPCOptions(grpc_servicer_functions=[add]))
        serve.run(Counting.bind())
        with grpc.insecure_channel("localhost:9000") as channel:
            count = channel.unary_stream(
                "/test.Counting/Count",
                request_serializer=wrappers.Int64Value.SerializeToString,
                response_deserializer=wrappers.Int64Value.FromString,
            )
            began_s = time.perf_counter()
            responses = count(wrappers.Int64Value(value=3))
            got = [(next(iter(responses)).value, round(time.perf_counter() - began_s, 1))]
            with pytest.raises(grpc.RpcError) as failed:
                got.extend((r.value, round(time.perf_counter() - began_s, 1)) for r in responses)
            return [*got, failed.value.code(), dict(responses.trailing_metadata())["count"]]

    said, _ = played(main)
    assert said == [(0, 0.1), (1, 0.2), (2, 0.3), grpc.StatusCode.DATA_LOSS, "3"]


def test_a_policy_that_fails_leaves_the_replicas_as_they_are_and_one_that_waits_is_refused() -> (
    None
):
    def main(policy: Callable[..., Any]) -> int:
        from ray import serve
        from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

        scaling = AutoscalingConfig(
            min_replicas=1, max_replicas=5, initial_replicas=2, upscale_delay_s=0,
            downscale_delay_s=0, policy=AutoscalingPolicy(policy_function=policy),
        )  # fmt: skip

        @serve.deployment(autoscaling_config=scaling)
        def here() -> str:
            return "here"

        serve.run(here.bind())
        time.sleep(5)
        return serve.status().applications["default"].deployments["here"].replica_states["RUNNING"]

    def fails(ctx: Any) -> Any:
        raise ValueError(ctx)

    def waits(_: Any) -> Any:
        time.sleep(1)
        return 3, {}

    assert played(lambda: main(fails))[0] == 2
    with pytest.raises(NotEmulatedError, match="an autoscaling policy that waits"):
        played(lambda: main(waits))


def test_clients_give_up_after_what_they_say() -> None:
    def main() -> list[tuple[str, float]]:
        import urllib.request

        import httpx
        from ray import serve

        @serve.deployment
        async def slow(_: Any) -> str:
            await asyncio.sleep(30)
            return "late"

        serve.run(slow.bind())
        url = "http://localhost:8000/"
        ways: list[Callable[[], Any]] = [
            lambda: urllib.request.urlopen(url, timeout=2),
            lambda: httpx.get(url),
            lambda: httpx.get(url, timeout=1),
            lambda: httpx.get(url, timeout=None).text,
        ]
        found = []
        for way in ways:
            began_s = time.perf_counter()
            try:
                said = str(way())
            except Exception as error:  # noqa: BLE001  (told apart below)
                said = type(error).__name__
            found.append((said, round(time.perf_counter() - began_s)))
        return found

    said = [("TimeoutError", 2), ("ReadTimeout", 5), ("ReadTimeout", 1), ("late", 30)]
    assert played(main)[0] == said


def test_a_batch_is_as_large_as_its_size_function_says() -> None:
    """Two of size 4 fill a batch of 8; one of 9 never fits."""

    def main() -> tuple[list[int], str]:
        from ray import serve

        @serve.deployment
        class Model:
            @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.5, batch_size_fn=sum)
            async def __call__(self, sizes: list[int]) -> list[int]:
                return [len(sizes)] * len(sizes)

        handle = serve.run(Model.bind())
        answers = [handle.remote(size) for size in (4, 4, 4, 3)]
        with pytest.raises(Exception, match="Size of item is greater") as error:
            handle.remote(9).result()
        return [answer.result() for answer in answers], str(error.value)

    (shared, _), _ = played(main)
    assert shared == [2, 2, 2, 2]
