"""``ray.serve.exceptions``.

Real counterpart: ``python/ray/serve/exceptions.py`` (ray 2.60).
"""

from __future__ import annotations

from raysim.rayapi.exceptions import TaskCancelledError
from raysim.rayapi.unsupported import getattr_of


class RayServeException(Exception):  # noqa: N818  (Ray's name)
    """Base of Serve's own."""


class BackPressureError(RayServeException):
    """More requests wait at a handle than ``max_queued_requests``."""

    def __init__(
        self,
        num_queued_requests: int,
        max_queued_requests: int,
        status_code: int = 503,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(num_queued_requests, max_queued_requests, status_code, retry_after_s)
        self.message = (
            f"Request dropped due to backpressure (num_queued_requests={num_queued_requests}, "
            f"max_queued_requests={max_queued_requests})."
        )
        self.status_code = status_code
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


class RequestCancelledError(RayServeException, TaskCancelledError):
    """The caller has cancelled it."""

    def __init__(self, request_id: str | None = None) -> None:
        self._request_id = request_id

    def __str__(self) -> str:
        return f"Request {self._request_id} was cancelled."


class DeploymentUnavailableError(RayServeException):
    """The deployment failed to deploy."""

    def __init__(self, deployment_id: object) -> None:
        super().__init__(deployment_id)
        self.message = f"{deployment_id} is unavailable because it failed to deploy."


class ReplicaUnavailableError(RayServeException):
    """The selected replica is gone."""

    def __init__(self, replica_id: str) -> None:
        self.message = f"Replica {replica_id} is no longer available."
        super().__init__(self.message)


for _kind in (
    RayServeException, BackPressureError, RequestCancelledError, DeploymentUnavailableError,
    ReplicaUnavailableError,
):  # fmt: skip
    _kind.__module__ = "ray.serve.exceptions"


__getattr__ = getattr_of("ray.serve.exceptions")
