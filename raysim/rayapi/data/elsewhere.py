"""``ray.data.read_*`` of systems and formats that have no reader here: rows that are described.

Real counterpart: ``ray/data/read_api.py``. What a scenario, or ``--set files=``, says of a path, a
URI, a table or the call itself (``at: read_bigquery``) is read; anything else is refused, with what
to say.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from raysim.rayapi.calls import program_call
from raysim.rayapi.data.dataset import Dataset
from raysim.rayapi.data.described import dataset_of, described, how_to_describe
from raysim.rayapi.unsupported import NotEmulatedError


def reader_of(call: str) -> Callable[..., Dataset]:
    """``ray.data``'s function of this name."""

    @program_call
    def read(*sources: Any, override_num_blocks: int | None = None, **options: Any) -> Dataset:
        """Rows that are described.

        Raises
        ------
        NotEmulatedError
            Nobody says how many there are.
        """
        said = [*_texts(sources), *_texts(options.values())]
        for at in (*said, call):
            there = described(at)
            if there is not None:
                name = "".join(word.capitalize() for word in call.split("_"))
                return dataset_of(there, name, override_num_blocks)
        shown = ", ".join(map(repr, said[:1]))
        raise NotEmulatedError(
            f"ray.data {call}({shown}) of a file, table or service",
            how_to_describe(said[0] if said else call),
        )

    read.__name__ = read.__qualname__ = call
    return read


def _texts(said: Any) -> Iterator[str]:
    for each in said:
        if isinstance(each, str | os.PathLike):
            yield os.fspath(each)
        elif isinstance(each, list | tuple):
            yield from _texts(each)


CALLS = (
    "read_audio", "read_avro", "read_bigquery", "read_clickhouse", "read_databricks_tables",
    "read_delta", "read_delta_sharing_tables", "read_hudi", "read_iceberg", "read_kafka",
    "read_lance", "read_lerobot", "read_mcap", "read_mongo", "read_snowflake", "read_tfrecords",
    "read_unity_catalog", "read_videos", "read_zarr",
)  # fmt: skip
"""Functions of ``ray.data`` that read so."""

READERS = {call: reader_of(call) for call in CALLS}
"""By their names."""
