"""Objects: put and get, fresh and reused pages, transfers between raylets, spill and restore."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import Any, cast

from raysim.measure.ray_core.probe import Probe, server, timed, while_time
from raysim.measure.session import repeat, stopwatch
from raysim.units import KIB, MIB

PUT = "put_ns plasma_request_ns pin_ns"
DELETED_S = 1.0
"""After which a raylet has deleted the files of what was freed: it looks once a second."""
FETCH = "copy_bytes_per_s chunk_ns object_manager_message_ns"


def probes(*, quick: bool) -> Iterator[Probe]:
    """On one node whose store nobody has written to: fresh pages must come first."""
    big = (MIB,) if quick else (16 * MIB, 128 * MIB)
    yield Probe(
        op="put_fresh", measure=_put_fresh, size_bytes=big[-1], unit="B/s",
        informs="first_touch_bytes_per_s",
    )  # fmt: skip
    for size_bytes in (KIB,) if quick else (KIB, 100 * KIB, MIB):
        yield Probe(op="put", measure=_put, size_bytes=size_bytes, informs=PUT)
    for size_bytes in big:
        yield Probe(
            op="put_reused", measure=_put_reused, size_bytes=size_bytes, unit="B/s",
            informs="memcpy_bytes_per_s",
        )  # fmt: skip
    for op, informs in (
        ("read_fresh", "first_touch_bytes_per_s"),
        ("read_again", "memcpy_bytes_per_s"),
    ):
        yield Probe(op=op, measure=_read, size_bytes=big[0], unit="B/s", informs=informs)
    for count in (1, 10) if quick else (1, 10, 100, 1000):
        yield Probe(
            op="get", measure=_get, count=count, size_bytes=KIB,
            informs="get_ns per_ref_get_ns plasma_request_ns",
        )  # fmt: skip
    yield Probe(
        op="get_of_replies", measure=_get_of_replies, count=20 if quick else 1000,
        informs="per_value_get_ns",
    )  # fmt: skip
    yield Probe(
        op="serialize", measure=_serialize, count=10_000 if quick else 1_000_000, unit="B/s",
        informs="serialize_bytes_per_s",
    )  # fmt: skip


def transfers(*, quick: bool) -> Iterator[Probe]:
    """On two nodes: the driver's (the head) gets what was made on the other, ``n1``."""
    for size_bytes in (MIB,) if quick else (256 * KIB, MIB, 8 * MIB, 64 * MIB):
        yield Probe(op="transfer", measure=_transfer, size_bytes=size_bytes, informs=FETCH)


def spills(*, quick: bool, store_bytes: int) -> Iterator[Probe]:
    """On a node with a small store, more than which is put."""
    for op, measure in (("spill", _spill), ("spill_again", _spill_again), ("restore", _restore)):
        for size_bytes in (8 * MIB,) if quick else (2 * MIB, 16 * MIB):
            yield Probe(
                op=op, measure=measure,
                count=4 * store_bytes // size_bytes, size_bytes=size_bytes, unit="B/s",
                informs=f"{op}_bytes_per_s" + " restore_ns" * (op == "restore"),
            )  # fmt: skip


def _array(size_bytes: int) -> Any:
    import numpy as np

    return np.ones(size_bytes, dtype=np.uint8)


def _put_fresh(probe: Probe, allowed_s: float) -> list[float]:
    """Objects that are kept, so that the next one gets other pages."""
    import ray

    array, kept = _array(probe.size_bytes), []

    def once() -> float:
        return probe.size_bytes / timed(lambda: kept.append(ray.put(array)))

    return while_time(once, allowed_s, most=5)


def _put(probe: Probe, allowed_s: float) -> list[float]:
    import ray

    array = _array(probe.size_bytes)
    return repeat(stopwatch(lambda: ray.put(array)), allowed_s)


def _put_reused(probe: Probe, allowed_s: float) -> list[float]:
    """Objects that are dropped at once; pages come back after the first rounds."""
    import ray

    array = _array(probe.size_bytes)

    def once() -> float:
        seconds = timed(lambda: ray.put(array))
        time.sleep(0.05)  # the raylet frees it
        return probe.size_bytes / seconds

    while_time(once, allowed_s / 4)
    return while_time(once, allowed_s)


def _read(probe: Probe, allowed_s: float) -> list[float]:
    """An actor reads an object that the driver wrote, for its first or its second time."""
    import ray

    @ray.remote(num_cpus=0)
    class Reader:
        def read(self, refs: list[Any]) -> tuple[float, float]:
            import time

            words = ray.get(refs[0]).view("uint64")
            seconds = []
            for _ in range(2):
                start = time.perf_counter()
                words.max()
                seconds.append(time.perf_counter() - start)
            return seconds[0], seconds[1]

    array = _array(probe.size_bytes)
    kept: list[Any] = []
    reader = cast("Any", Reader).remote()
    which = 0 if probe.op == "read_fresh" else 1

    def once() -> float:
        kept.append(ray.put(array))
        seconds: float = ray.get(reader.read.remote([kept[-1]]))[which]
        return probe.size_bytes / seconds

    try:
        return while_time(once, allowed_s, most=10)
    finally:
        ray.kill(reader)


def _get(probe: Probe, allowed_s: float) -> list[float]:
    """``ray.get`` of a list of ``count`` objects in the node's store."""
    import ray

    array = _array(probe.size_bytes)
    refs = [ray.put(array) for _ in range(probe.count)]
    return repeat(stopwatch(lambda: ray.get(refs)), allowed_s)


def _get_of_replies(probe: Probe, allowed_s: float) -> list[float]:
    """Seconds of ``ray.get`` for each of ``count`` values that came with replies."""
    import ray

    actor = server()
    refs = [actor.no_op.remote() for _ in range(probe.count)]
    ray.get(refs)
    found = repeat(stopwatch(lambda: ray.get(refs)), allowed_s)
    ray.kill(actor)
    return [seconds / probe.count for seconds in found]


def _serialize(probe: Probe, allowed_s: float) -> list[float]:
    """``ray.put`` of a list of ``count`` integers; bytes are pickle's."""
    import ray

    numbers = list(range(probe.count))
    size_bytes = len(pickle.dumps(numbers, protocol=5))
    return while_time(lambda: size_bytes / timed(lambda: ray.put(numbers)), allowed_s)


def _maker() -> Any:
    """An actor on the other node that makes objects there."""
    import ray

    @ray.remote(num_cpus=0, resources={"n1": 0.001})
    class Maker:
        def make(self, size_bytes: int) -> list[Any]:
            import numpy as np

            return [ray.put(np.ones(size_bytes, dtype=np.uint8))]

    return cast("Any", Maker).remote()


def _transfer(probe: Probe, allowed_s: float) -> list[float]:
    import ray

    maker = _maker()

    def once() -> float:
        (ref,) = ray.get(maker.make.remote(probe.size_bytes))
        return timed(lambda: ray.get(ref))

    try:
        once()
        return while_time(once, allowed_s)
    finally:
        ray.kill(maker)


def _spill(probe: Probe, allowed_s: float) -> list[float]:
    """Four stores are put into a full one: every object waits for another to be spilled."""
    import ray

    array = _array(probe.size_bytes)
    kept: list[Any] = []

    def batch() -> float:
        count = probe.count
        seconds = timed(lambda: kept.extend(ray.put(array) for _ in range(count)))
        return count * probe.size_bytes / seconds

    batch()  # fills, and starts the spill workers
    kept[: probe.count // 2] = []
    return while_time(batch, allowed_s, least=2, most=5)


def _spill_again(probe: Probe, allowed_s: float) -> list[float]:
    """Three stores are put into a full one just after as much was deleted from the disk."""
    import ray

    array = _array(probe.size_bytes)
    store = probe.count // 4
    kept: list[Any] = [ray.put(array) for _ in range(probe.count)]

    def batch() -> float:
        del kept[:-store]
        time.sleep(DELETED_S)
        seconds = timed(lambda: kept.extend(ray.put(array) for _ in range(3 * store)))
        return 3 * store * probe.size_bytes / seconds

    return while_time(batch, allowed_s, least=2, most=5)


def _restore(probe: Probe, allowed_s: float) -> list[float]:
    """Spilled objects, one ``ray.get`` after the other; what was in the store made room before."""
    import ray

    array = _array(probe.size_bytes)
    spilled = [ray.put(array) for _ in range(probe.count)]
    del spilled[probe.count // 2 :]  # of four stores; what is in the store is among them
    time.sleep(1.0)  # the raylet frees them

    def once() -> float:
        return probe.size_bytes / timed(lambda: ray.get(spilled.pop(0)))

    return while_time(once, allowed_s, least=min(5, len(spilled)), most=len(spilled))
