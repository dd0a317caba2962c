"""ActorPool, Queue, multiprocessing.Pool, joblib, placement groups: what they refuse, time out on, return."""
# cluster: 2 CPU

import time

import ray
from ray.exceptions import RayTaskError
from ray.util import ActorPool
from ray.util.metrics import Counter, Gauge, Histogram
from ray.util.multiprocessing import Pool
from ray.util.placement_group import (
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.queue import Queue
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)


def say(label, call):
    try:
        print(label, call())
    except RayTaskError as error:
        print(label, "task error", type(error.cause).__name__)
    except Exception as error:
        print(label, type(error).__name__, str(error).splitlines()[:1])


ray.init()
q = Queue(maxsize=2)
say("put", lambda: (q.put(1), q.put_nowait(2), q.size(), q.qsize(), q.full(), q.empty(), len(q)))
say("full", lambda: q.put_nowait(3))
say("full t", lambda: q.put(3, timeout=0.2))
say("neg t", lambda: q.put(3, timeout=-1))
say("batch", lambda: q.put_nowait_batch([1, 2]))
say("get b", lambda: q.get_nowait_batch(2))
say("get b more", lambda: q.get_nowait_batch(2))
say("get neg", lambda: q.get_nowait_batch(-1))
say("empty", lambda: q.get_nowait())
say("empty t", lambda: q.get(timeout=0.2))
say("block", lambda: q.get(block=False))
say("put list", lambda: q.put_nowait_batch(5))
say("shutdown", lambda: q.shutdown())
say("after", lambda: q.size())


@ray.remote(num_cpus=0)
class W:
    def dbl(self, x):
        return x * 2

    def bad(self, x):
        raise ValueError(x)


pool = ActorPool([W.remote(), W.remote()])
say("map", lambda: list(pool.map(lambda a, v: a.dbl.remote(v), range(5))))
say("unord", lambda: sorted(pool.map_unordered(lambda a, v: a.dbl.remote(v), range(5))))
say("next", lambda: pool.get_next())
say("has", lambda: (pool.has_next(), pool.has_free()))
say("submit", lambda: [pool.submit(lambda a, v: a.dbl.remote(v), i) for i in range(3)])
say("mixed", lambda: (pool.get_next_unordered() in (0, 2),))
say("mix2", lambda: pool.get_next())
say("mix3", lambda: pool.get_next_unordered())
say(
    "pop", lambda: (type(pool.pop_idle()).__name__, type(pool.pop_idle()).__name__, pool.pop_idle())
)
w = W.remote()
say("push", lambda: pool.push(w))
say("push2", lambda: pool.push(w))
say("err", lambda: list(pool.map(lambda a, v: a.bad.remote(v), range(2))))
say("idle err", lambda: (pool.has_free(), pool.has_next()))
with Pool(2) as mp:
    say("mp map", lambda: mp.map(lambda x: x + 1, range(5)))
    say("mp star", lambda: mp.starmap(lambda x, y: x + y, [(1, 2), (3, 4)]))
    say("mp apply", lambda: mp.apply(lambda x, y=0: x + y, (1,), {"y": 2}))
    say("mp async", lambda: mp.apply_async(lambda: 5).get(timeout=10))
    r = mp.map_async(lambda x: x, [1, 2])
    say("mp ready", lambda: (r.wait(), r.ready(), r.successful(), r.get()))
    say("mp imap", lambda: list(mp.imap(lambda x: x, range(4), chunksize=2)))
    say("mp imapu", lambda: sorted(mp.imap_unordered(lambda x: x, range(4))))
    say("mp err", lambda: mp.map(lambda x: 1 / x, [1, 0]))
    say("mp tmo", lambda: mp.apply_async(time.sleep, (2,)).get(timeout=0.3))
    cb = []
    say("mp cb", lambda: (mp.apply_async(lambda: 7, callback=cb.append).get(), time.sleep(0.5), cb))
    say("join", lambda: mp.join())
    say("close", lambda: (mp.close(), mp.join()))
    say("closed", lambda: mp.map(lambda x: x, [1]))
say("pool big", lambda: Pool(0))
say("pool neg", lambda: Pool(-1))
for bundles, kw in (
    ([], {}),
    ([{}], {}),
    ([{"CPU": 0}], {}),
    ("x", {}),
    ([{"CPU": 1}], {"lifetime": "x"}),
    ([5], {}),
):
    say(
        ("pg", bundles, kw),
        lambda bundles=bundles, kw=kw: type(placement_group(bundles, **kw)).__name__,
    )
pg = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="PACK", name="mine")
say("wait", lambda: pg.wait(5))
say("ready", lambda: ray.get(pg.ready()) == pg)
say("specs", lambda: (pg.bundle_specs, pg.bundle_count, pg.is_empty))
say(
    "table",
    lambda: {
        k: v
        for k, v in placement_group_table(pg).items()
        if k in ("name", "bundles", "strategy", "state")
    },
)


@ray.remote(num_cpus=1)
def inside():
    return (
        get_current_placement_group() is not None,
        ray.get_runtime_context().get_assigned_resources().get("CPU"),
    )


def at(**k):
    return PlacementGroupSchedulingStrategy(placement_group=pg, **k)


say("in", lambda: ray.get(inside.options(scheduling_strategy=at()).remote()))
say(
    "in capture",
    lambda: ray.get(
        inside.options(scheduling_strategy=at(placement_group_capture_child_tasks=True)).remote()
    ),
)
say(
    "bad idx",
    lambda: inside.options(scheduling_strategy=at(placement_group_bundle_index=5)).remote(),
)
say(
    "idx neg",
    lambda: inside.options(scheduling_strategy=at(placement_group_bundle_index=-2)).remote(),
)
say("too big", lambda: inside.options(num_cpus=2, scheduling_strategy=at()).remote())
say("gpu", lambda: inside.options(num_gpus=1, scheduling_strategy=at()).remote())
say("driver", lambda: get_current_placement_group())
say("get", lambda: ray.util.get_placement_group("mine") == pg)
say("get no", lambda: ray.util.get_placement_group("no"))
say("remove", lambda: remove_placement_group(pg))
say("remove2", lambda: remove_placement_group(pg))
say("aff", lambda: NodeAffinitySchedulingStrategy(node_id="zz", soft=False))
say("wait pg", lambda: placement_group([{"CPU": 100}]).wait(1))
say("counter", lambda: Counter("c", description="d", tag_keys=("a",)).inc(1, {"a": "x"}))
say("counter neg", lambda: Counter("c2").inc(-1))
say("counter tag", lambda: Counter("c3", tag_keys=("a",)).inc(1, {"b": "x"}))
say("counter miss", lambda: Counter("c4", tag_keys=("a",)).inc(1))
say("hist", lambda: Histogram("h", boundaries=[]))
say("hist2", lambda: Histogram("h", boundaries=[-1, 2]))
say("gauge", lambda: (Gauge("g").set(3), Gauge("g").info))
say("gauge bad", lambda: Gauge("g").set("x"))
say("log", lambda: ray.util.log_once("k") and not ray.util.log_once("k"))
say("node", lambda: ray.util.get_node_ip_address().count("."))
