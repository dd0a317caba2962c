"""Ray Data: sorts by one and several keys, up and down, by boundaries."""
# cluster: 4 CPU

import numpy as np
import ray


def tells(what, *args, **kwargs):
    try:
        print(what(*args, **kwargs))
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[-1])


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
ds = ray.data.range(200, override_num_blocks=6)
mixed = ds.random_shuffle(seed=1).map_batches(
    lambda b: {"id": b["id"], "k": b["id"] % 3, "t": np.array([f"n{i % 7}" for i in b["id"]])}
)
print([r["id"] for r in mixed.sort("id", descending=True).take_all()] == list(range(199, -1, -1)))
rows = mixed.sort(["k", "id"], descending=[True, False]).take_all()
print([(r["k"], r["id"]) for r in rows[:3]], [(r["k"], r["id"]) for r in rows[-2:]])
rows = mixed.sort(["t", "id"]).take_all()
print(rows[0], rows[-1])
parts = mixed.sort("id", boundaries=[50, 150]).materialize()
print([r["id"] for r in parts.take_all()] == list(range(200)), parts.num_blocks())
tells(mixed.sort("id").map(lambda r: {"x": -r["id"]}).take, 3)
tells(ds.sort, None)
tells(ds.sort, ["id"], [True, False])
