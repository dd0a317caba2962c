"""A sort of terabytes on Ray Core, as a scenario says it (``raylibs.exoshuffle``)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raysim.scenario.quantities import Bytes, Seconds
from raysim.scenario.section import Section

PerCpu = Annotated[float, Field(gt=0, le=16)]
Few = Annotated[int, Field(ge=1, le=1_000)]


class ExoshuffleSection(Section):
    """Exoshuffle-CloudSort; what is not said is its configuration's default."""

    total: Bytes = Field(description="What is sorted, such as 100TB.")
    input_part: Bytes | None = Field(None, description="Of one map; 2 GB by default.")
    output_part: Bytes | None = Field(None, description="Of one last merge; input_part by default.")
    bucket: str | None = Field(
        None, description="Input and output, such as s3; the nodes' own disks by default."
    )
    map_parallelism: PerCpu = Field(0.5, description="Maps at once, per CPU of a node.")
    reduce_parallelism: PerCpu = Field(0.5, description="Last merges at once, per CPU of a node.")
    merge_factor: Few = Field(2, description="Rounds of blocks of all nodes that a merge takes.")
    map_core_per_byte: Seconds | None = Field(None, description="Load, sort, cut and send.")
    merge_core_per_byte: Seconds | None = Field(None, description="Receive and merge, or upload.")
    played_nodes: Few = Field(4, description="At most; the others, by symmetry, do the same.")
