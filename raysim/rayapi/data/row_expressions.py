"""Expressions whose values are not computed of the block alone: files that are fetched, ids drawn.

Real counterpart: ``DownloadExpr`` and ``UUIDExpr`` of ``ray/data/expressions.py`` and
``_internal/planner/plan_download_op.py`` (2.60).

Not modelled: stores that are not of this machine (refused); several files at once.
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.data.columns import arrow
from raysim.rayapi.data.expression_nodes import Expr
from raysim.rayapi.data.storage import local, read_from_disk


class DownloadExpr(Expr):
    """Bytes of the files that a column names; None of one that cannot be read."""

    def __init__(self, uri_column_name: str, filesystem: Any = None) -> None:
        del filesystem  # paths of this machine are read as they are
        self.uri_column_name = uri_column_name

    def value(self, table: Any) -> Any:
        """In the task, which pays for their bytes."""
        paths = table.column(self.uri_column_name).to_pylist()
        return arrow("ray.data.expressions.download").array(map(_contents, paths), type="binary")

    @property
    def label(self) -> str:
        """With the column."""
        return f"DOWNLOAD({self.uri_column_name})"

    def inline(self) -> str:
        """As a call."""
        return f"download({self.uri_column_name!r})"


def _contents(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        found = local(path, "expressions.download").read_bytes()
    except OSError:
        return None
    read_from_disk(len(found))
    return found


class UUIDExpr(Expr):
    """An identifier for each row, drawn from the run's seed."""

    def value(self, table: Any) -> Any:
        """Of the fourth version."""
        draws = this_fiber().process.session.sim.rng("data/uuid")
        made = [_uuid(draws.bytes(16).hex()) for _ in range(len(table))]
        return arrow("ray.data.expressions.uuid").array(made, type="string")

    @property
    def label(self) -> str:
        """Without arguments."""
        return "UUID()"

    def inline(self) -> str:
        """As a call."""
        return "UUID()"


def _uuid(drawn: str) -> str:
    return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-a{drawn[17:20]}-{drawn[20:]}"


def download(uri_column_name: str, *, filesystem: Any = None) -> DownloadExpr:
    """``ray.data.expressions.download``."""
    return DownloadExpr(uri_column_name, filesystem)


def uuid() -> UUIDExpr:
    """``ray.data.expressions.uuid``."""
    return UUIDExpr()
