"""Measure the real machine: tables of what it does, with hardware, versions and spread."""

from __future__ import annotations

from raysim.measure.machine import Machine, describe, slug
from raysim.measure.table import MeasuredRow, MeasuredTable, read_rows

__all__ = ["Machine", "MeasuredRow", "MeasuredTable", "describe", "read_rows", "slug"]
