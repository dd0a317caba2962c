"""Ray Data: what maps, renames, limits and lines refuse, and what functions may not return."""
# cluster: 4 CPU

import tempfile
from pathlib import Path

import ray


def say(label, call):
    try:
        print(label, call())
    except Exception as error:
        print(label, type(error).__name__, str(error).splitlines()[-1][:150])


class Same:
    def __call__(self, batch):
        return batch


def same(batch):
    return batch


def told(error):
    """Where a program's function is in memory is chance."""
    return str(error).split("<function")[0]


def refused(label, **options):
    try:
        ds.map_batches(options.pop("fn", same), **options)
        print(label, "taken")
    except Exception as error:
        print(label, type(error).__name__, told(error))


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
ds = ray.data.range(4, override_num_blocks=2)
refused("constructor", fn_constructor_args=[1])
refused("none", concurrency=0)
refused("none of a class", fn=Same, concurrency=0)
refused("pair", concurrency=(1, 2))
refused("four", fn=Same, concurrency=(1, 2, 3, 4))
refused("words", concurrency="two")
refused("actors", compute=ray.data.ActorPoolStrategy(size=1))
refused("class", fn=Same, concurrency=1)
refused("pool", fn=Same, compute=ray.data.ActorPoolStrategy(min_size=1, max_size=2))
say("tasks", lambda: ray.data.TaskPoolStrategy(size=0))
say("pool of none", lambda: ray.data.ActorPoolStrategy(size=0))
for label, wrong in (("row", ds.map(lambda r: 1)), ("rows", ds.flat_map(lambda r: [1]))):
    try:
        wrong.take_all()
    except ValueError as error:
        print(label, type(error).__name__, "Error validating 1: Standalone" in str(error))
say("rename", lambda: ds.rename_columns({"id": 5}))
say("rename list", lambda: ds.rename_columns([5]))
say("limit", lambda: ds.limit(-1).take_all())
say("len", lambda: len(ds))
say("iter", lambda: list(ds))
say("bool", lambda: bool(ds))
text = Path(tempfile.mkdtemp()) / "a.txt"
text.write_text("a\n\nb\n")
say("lines", lambda: ray.data.read_text(str(text)).take_all())
say("all lines", lambda: ray.data.read_text(str(text), drop_empty_lines=False).take_all())
