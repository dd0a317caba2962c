"""Blocks of so many rows, at most or exactly."""
# cluster: 4 CPU

import warnings

import ray


def sizes(ds):
    return [len(ray.get(ref)) for ref in ds.to_pandas_refs()]


def main():
    ray.init()
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    ds = ray.data.range(24, override_num_blocks=4)
    print(sizes(ds.repartition(target_num_rows_per_block=4)))
    print(sizes(ds.repartition(target_num_rows_per_block=10)))
    exact = ds.repartition(target_num_rows_per_block=5, strict=True)
    print(sorted(sizes(exact), reverse=True), [row["id"] for row in exact.take_all()])
    print(sorted(sizes(ds.repartition(target_num_rows_per_block=10, strict=True)), reverse=True))
    batches = ds.map_batches(lambda batch: batch, batch_size=5)
    cut = batches.repartition(target_num_rows_per_block=3)
    print(sum(sizes(cut)), max(sizes(cut)), cut.map(lambda row: row).count())
    kept = ray.data.range(9, override_num_blocks=3).materialize()
    twos = kept.repartition(target_num_rows_per_block=2, strict=True)
    print(sorted(sizes(twos)), twos.count(), kept.count())
    wrongs = (
        {},
        {"num_blocks": 1, "target_num_rows_per_block": 1},
        {"target_num_rows_per_block": 0},
        {"target_num_rows_per_block": 2, "shuffle": True},
    )
    for wrong in wrongs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ds.repartition(**wrong)
            except ValueError as error:
                print(error)


if __name__ == "__main__":
    main()
