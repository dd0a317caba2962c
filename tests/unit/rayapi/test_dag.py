"""Compiled graphs in virtual time: what they cost, send and hold. Values: tests/conformance."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raycore.cluster import Cluster
from raysim.raycore.protocol import object_manager, plasma
from raysim.units import MB
from tests.rayapi_parts import run
from tests.raycore_parts import ray_cluster


def worker_class(ray: Any) -> Any:
    @ray.remote(num_cpus=0)
    class Worker:
        def same(self, x: Any) -> Any:
            return x

        def work(self, x: float) -> float:
            import time

            time.sleep(x)
            return x

    return Worker


def chain(ray: Any, actors: list[Any], **options: Any) -> Any:
    from ray.dag import InputNode

    with InputNode() as given:
        node: Any = given
        for actor in actors:
            node = actor.same.bind(node)
    return node.experimental_compile(**options)


def seconds_each(length: int, cluster: Cluster | None = None, node: int = 0) -> float:
    """Of one execution of a chain of so many actors."""

    def main() -> float:
        import time

        import ray

        ray.init()
        worker = worker_class(ray).options(resources={f"node:10.0.0.{node}": 0.001})
        graph = chain(ray, [worker.remote() for _ in range(length)])
        ray.get(graph.execute(0))
        t0 = time.perf_counter()
        for k in range(100):
            assert ray.get(graph.execute(k)) == k
        return (time.perf_counter() - t0) / 100

    return float(run(main, cluster or ray_cluster(cpus=8)))


def test_there_and_back_takes_135_microseconds_and_every_hop_tens_more() -> None:
    one, two = seconds_each(1), seconds_each(2)
    assert one == pytest.approx(135e-6, rel=0.05)
    assert 40e-6 < two - one < 80e-6


def test_a_hop_to_another_node_pays_the_network_both_ways() -> None:
    here = seconds_each(1)
    there = seconds_each(1, ray_cluster(2, cpus=8), node=1)
    one_way = 189e-6
    assert there - here == pytest.approx(2 * one_way, rel=0.1)


def test_executions_overlap_in_the_actors() -> None:
    def main() -> float:
        import time

        import ray
        from ray.dag import InputNode

        ray.init(num_cpus=4)
        a, b = (worker_class(ray).remote() for _ in range(2))
        with InputNode() as given:
            graph = b.work.bind(a.work.bind(given)).experimental_compile()
        t0 = time.perf_counter()
        ray.get([graph.execute(1.0) for _ in range(5)])
        return time.perf_counter() - t0

    assert run(main) == pytest.approx(6, abs=0.01)


def test_an_execution_sends_nothing_to_the_gcs_or_the_raylets() -> None:
    cluster = ray_cluster(cpus=4)

    def servers() -> int:
        names = [getattr(w, "__qualname__", "") for w in cluster.sim.log.whats]
        return sum(n.startswith(("Gcs.", "Raylet.", "PlasmaStore.")) for n in names)

    def main() -> int:
        import ray

        ray.init()
        graph = chain(ray, [worker_class(ray).remote()])
        ray.get(graph.execute(0))
        before = servers()
        assert before > 100, "compiling asks the actors"
        for k in range(50):
            ray.get(graph.execute(k))
        return servers() - before

    assert run(main, cluster) == 0


def test_channels_hold_ten_buffers_of_a_megabyte_until_teardown() -> None:
    cluster = ray_cluster(cpus=4)
    store: Any = cluster.sim.components[plasma(0)]

    def main() -> list[int]:
        import time

        import ray

        ray.init()
        used = [store.used]
        graph = chain(ray, [worker_class(ray).remote()])
        used.append(store.used)
        graph.teardown()
        time.sleep(5)
        used.append(store.used)
        return used

    before, during, after = run(main, cluster)
    assert during - before == pytest.approx(2 * 10 * MB, rel=0.01)
    assert after == before
    assert object_manager(0) in cluster.sim.components


def test_a_full_channel_makes_execute_wait_and_time_out() -> None:
    def main() -> tuple[float, str]:
        import time

        import ray
        from ray.dag import InputNode

        ray.init(num_cpus=4)
        far = worker_class(ray).remote()
        with InputNode() as given:
            node = far.work.bind(given)
        graph = node.experimental_compile(_max_inflight_executions=3, _submit_timeout=2)
        refs = [graph.execute(60.0) for _ in range(3)]
        graph.max_inflight_executions = 100
        refs.append(graph.execute(60.0))  # the loop has taken one of the three
        t0 = time.perf_counter()
        with pytest.raises(ray.exceptions.RayChannelTimeoutError) as error:
            graph.execute(60.0)
        return time.perf_counter() - t0, str(error.value)

    waited, message = run(main)
    assert waited == pytest.approx(2, abs=0.01)
    assert "RAY_CGRAPH_submit_timeout which is currently 2 seconds" in message


def test_a_graph_that_nobody_has_any_more_lets_its_actors_go() -> None:
    def main() -> int:
        import gc

        import ray

        ray.init(num_cpus=4)
        actor = worker_class(ray).remote()
        graph = chain(ray, [actor])
        assert ray.get(graph.execute(1)) == 1
        del graph
        gc.collect()
        second = chain(ray, [actor])
        return int(ray.get(second.execute(2)))

    assert run(main) == 2


def test_tensor_transport_is_refused_by_name() -> None:
    def main() -> None:
        import ray
        from ray.dag import InputNode

        ray.init(num_cpus=1)
        with InputNode() as given:
            given.x.with_tensor_transport()

    with pytest.raises(NotEmulatedError, match="with_tensor_transport"):
        run(main)
