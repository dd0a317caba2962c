"""Functions' workers, names and limits that Data refuses; lines of text without an end."""
# cluster: 4 CPU

import tempfile
from pathlib import Path

import ray


def say(label, call):
    try:
        print(label, call())
    except Exception as error:
        print(label, type(error).__name__, str(error).replace(repr(same), "same").splitlines()[:1])


def same(batch):
    return batch


class Same:
    def __call__(self, batch):
        return batch


ray.init()
ds = ray.data.range(3)
tasks, actors = ray.data.TaskPoolStrategy, ray.data.ActorPoolStrategy
say("function's constructor", lambda: ds.map_batches(same, fn_constructor_args=(1,)))
say("function in actors", lambda: ds.map_batches(same, compute="actors"))
say("no workers", lambda: ds.map_batches(same, concurrency=0))
say("function of a pair", lambda: ds.map_batches(same, concurrency=(1, 2)))
say("four", lambda: ds.map_batches(Same, concurrency=(1, 2, 3, 4)))
say("text", lambda: ds.map_batches(same, concurrency="two"))
say("no actors", lambda: ds.map_batches(Same, concurrency=0))
say("no tasks", lambda: tasks(size=0))
say("no actor", lambda: actors(size=0))
say("none at least", lambda: actors(min_size=0))
say("class", lambda: ds.map_batches(Same).take_all())
say("pair", lambda: ds.map_batches(Same, concurrency=(1, 2)).count())
say("below none", lambda: ds.limit(-1).take_all())
say("renamed to a number", lambda: ds.rename_columns({"id": 1}))
say("renamed from a number", lambda: ds.rename_columns({1: "id"}))
say("a number in a list", lambda: ds.rename_columns([5]))
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "a.txt").write_text("one\n\ntwo\n")
    say("lines", lambda: ray.data.read_text(folder).take_all())
    say("all lines", lambda: ray.data.read_text(folder, drop_empty_lines=False).take_all())
