"""How fast a host's threads are, from the ``host_dispatch.csv`` of ``raysim measure host``.

Every layer's forward and backward there says it: what the reference host takes for so many
operators, modules and nodes, over what was measured. A profile holds the median as ``host_speed``,
and every cost of the host is divided by it.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median

from raysim.calibrate.rows import DECILES_APART
from raysim.measure.table import MeasuredRow, read_rows
from raysim.perf.host import HostCosts
from raysim.perf.profile import Constant

TABLE = "host_dispatch.csv"


def host_speed(folder: Path) -> Constant | None:
    """Over the host that raysim's own constants were measured on; None without such a table.

    ``error`` is the layers' spread, as a share.

    Raises
    ------
    CalibrationError
        The table cannot be read.
    """
    path = folder / TABLE
    rows = read_rows(path) if path.exists() else []
    speeds = sorted(speed for row in rows if (speed := _speed(row)) is not None)
    if not speeds:
        return None
    spread = math.log(speeds[-1] / speeds[0]) / DECILES_APART if len(speeds) > 1 else 0.0
    return Constant(
        value=float(f"{median(speeds):.3g}"), unit="1", error=round(spread, 3),
        source=f"{TABLE}: forward and backward of small layers", rows=(f"{len(speeds)} rows",),
    )  # fmt: skip


def _speed(row: MeasuredRow) -> float | None:
    """Of a layer's row; None for any other."""
    own = HostCosts()
    counts = {key: int(row.parameters[key]) for key in ("operators", "nodes", "modules")}
    expected = {
        "forward": counts["operators"] * own.operator_s + counts["modules"] * own.module_s,
        "backward": counts["nodes"] * own.node_s,
    }.get(str(row.parameters["quantity"]))
    return None if expected is None or row.value <= 0 else expected / row.value
