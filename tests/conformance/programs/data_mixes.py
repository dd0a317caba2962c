"""Ray Data: mixes of datasets by weights, and the context that a dataset has of its own."""
# cluster: 4 CPU

import datetime

import pandas as pd
import ray
from ray.data import DataContext, MixStoppingCondition


def say(label, call):
    try:
        print(label, call())
    except Exception as error:
        print(label, type(error).__name__, error)


def rows(dataset):
    return [row["x"] for row in dataset.take_all()]


def items(begin, end, blocks):
    dataset = ray.data.from_items([{"x": i} for i in range(begin, end)])
    return dataset.repartition(blocks).materialize()


def mixes():
    long, short, third = items(0, 12, 6), items(100, 104, 2), items(200, 206, 3)
    print(rows(long.mix(short)))
    print(rows(long.mix(short, weights=[3, 1])))
    shortest = MixStoppingCondition.STOP_ON_SHORTEST
    print(rows(long.mix(short, weights=[1, 1], stopping_condition=shortest)))
    print(rows(long.mix(short, third, weights=[0.5, 0.25, 0.25])))
    print(long.mix(short).count(), long.mix(short).columns())
    print(sorted(rows(long.mix(short).map(lambda row: {"x": row["x"] + 1}))))
    say("weights", lambda: long.mix(short, weights=[1]))
    say("negative", lambda: rows(long.mix(short, weights=[1, -1])))


def contexts():
    context = DataContext.get_current()
    context.target_max_block_size = 1_000
    small = ray.data.range(1_000, override_num_blocks=1).map(lambda row: row)
    context.target_max_block_size = 128 * 2**20
    print(small.context.target_max_block_size, small.materialize().num_blocks() > 1)
    print(ray.data.range(1_000, override_num_blocks=1).materialize().num_blocks())
    ray.data.range(3).context.preserve_order = True
    print(context.execution_options.preserve_order)


def dates():
    days = [datetime.date(2024, 1, day) for day in (1, 2)]
    dataset = ray.data.from_pandas(pd.DataFrame({"d": days, "t": pd.to_datetime(days)}))
    print(dataset.schema())
    print({name: column.dtype for name, column in dataset.take_batch(2).items()})


ray.init()
DataContext.get_current().enable_progress_bars = False
mixes()
contexts()
dates()
