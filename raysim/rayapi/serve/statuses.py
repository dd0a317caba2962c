"""What ``serve.status()`` says: of applications, deployments and proxies.

Real counterpart: these classes of ``python/ray/serve/schema.py`` and ``_private/common.py`` (2.60).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ApplicationStatus(str, Enum):  # noqa: UP042  (printed as Ray prints it)
    """Of an application."""

    DEPLOYING = "DEPLOYING"
    DEPLOY_FAILED = "DEPLOY_FAILED"
    RUNNING = "RUNNING"


class DeploymentStatus(str, Enum):  # noqa: UP042  (as above)
    """Of a deployment."""

    UPDATING = "UPDATING"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    DEPLOY_FAILED = "DEPLOY_FAILED"


@dataclass(frozen=True)
class DeploymentStatusOverview:
    """One deployment."""

    status: DeploymentStatus
    status_trigger: str
    replica_states: dict[str, int]
    message: str


@dataclass(frozen=True)
class ApplicationStatusOverview:
    """One application."""

    status: ApplicationStatus
    message: str
    last_deployed_time_s: float
    deployments: dict[str, DeploymentStatusOverview]


class ProxyStatus(str, Enum):  # noqa: UP042  (as above)
    """Of a proxy."""

    STARTING = "STARTING"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"


@dataclass(frozen=True)
class ServeStatus:
    """``serve.status()``."""

    proxies: dict[str, ProxyStatus]
    applications: dict[str, ApplicationStatusOverview]
    target_capacity: float | None = None
