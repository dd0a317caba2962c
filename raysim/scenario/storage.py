"""Where checkpoints are: a bucket by its catalog name, or a shared file system by its rates."""

from __future__ import annotations

import math

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.hardware.specs import SharedStorageSpec
from raysim.hardware.storage import CONNECTIONS
from raysim.scenario.documents import Document, KeyPath
from raysim.scenario.schema_train import StorageSection


def storage_of(
    said: StorageSection | None, path: KeyPath, document: Document
) -> SharedStorageSpec | None:
    """What all nodes reach; None: each node's own disk.

    Raises
    ------
    ScenarioError
        No storage has that name.
    """
    if said is None or said.name == "disk":
        return None
    if said.name is None:
        assert said.write is not None, "the schema asks for a name or a rate"
        return SharedStorageSpec(
            name="shared store",
            write_bytes_per_s=said.write,
            read_bytes_per_s=said.read or said.write,
            node_write_bytes_per_s=said.write_per_node or math.inf,
            node_read_bytes_per_s=said.read_per_node or math.inf,
        )
    try:
        bucket = catalog.object_storage(said.name)
    except ScenarioError as error:
        message = f"{error.problems[0].message}; or disk, or rates: {{write: 58GB/s}}"
        raise ScenarioError(document.problem(path, message)) from None
    return SharedStorageSpec(
        name=bucket.name,
        stream_write_bytes_per_s=CONNECTIONS * bucket.write_bytes_per_s_per_connection,
        stream_read_bytes_per_s=CONNECTIONS * bucket.read_bytes_per_s_per_connection,
        provenance=bucket.provenance,
    )
