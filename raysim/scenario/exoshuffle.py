"""An ``exoshuffle`` section as a spec of ``raylibs.exoshuffle``."""

from __future__ import annotations

from pathlib import Path

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.raylibs.exoshuffle.job import ExoshuffleJob
from raysim.raylibs.exoshuffle.spec import PART_BYTES, Costs, Plan
from raysim.scenario.documents import Document, KeyPath
from raysim.scenario.schema_exoshuffle import ExoshuffleSection


def read_exoshuffle(
    said: ExoshuffleSection, at: KeyPath, _folder: Path, document: Document,
    _inputs: dict[KeyPath, Path],
) -> ExoshuffleJob:  # fmt: skip
    """The job.

    Raises
    ------
    ScenarioError
        No bucket has that name, or a part is larger than the whole.
    """
    bucket = None
    if said.bucket is not None:
        try:
            bucket = catalog.object_storage(said.bucket)
        except ScenarioError as error:
            known = error.problems[0].message
            raise ScenarioError(document.problem((*at, "bucket"), known)) from None
    input_part = said.input_part or PART_BYTES
    output_part = said.output_part or input_part
    for key, size_bytes in (("input_part", input_part), ("output_part", output_part)):
        if not 0 < size_bytes <= said.total:
            message = f"must be above 0 and at most total ({said.total:,} bytes)"
            raise ScenarioError(document.problem((*at, key), message))
    usual = Costs()
    return ExoshuffleJob(
        plan=Plan(
            total_bytes=said.total, input_part_bytes=input_part,
            output_part_bytes=output_part, map_parallelism=said.map_parallelism,
            reduce_parallelism=said.reduce_parallelism, merge_factor=said.merge_factor,
        ),
        bucket=bucket,
        costs=Costs(
            map_core_s_per_byte=said.map_core_per_byte or usual.map_core_s_per_byte,
            merge_core_s_per_byte=said.merge_core_per_byte or usual.merge_core_s_per_byte,
        ),
        played_nodes=said.played_nodes,
    )  # fmt: skip
