"""Autoscaler v2: reads what the cluster lacks, asks the cloud for nodes, gives idle ones back."""

from __future__ import annotations

from raysim.raycore.autoscaler.config import AutoscalerConfig, NodeTypeConfig
from raysim.raycore.autoscaler.reconciler import Autoscaler

__all__ = ["Autoscaler", "AutoscalerConfig", "NodeTypeConfig"]
