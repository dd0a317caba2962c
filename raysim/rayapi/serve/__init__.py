"""The module ``ray.serve`` (2.60) on virtual time."""

from __future__ import annotations

from raysim.rayapi.serve import configs as config
from raysim.rayapi.serve import context, exceptions, handle, rpc, schema
from raysim.rayapi.serve.batching import batch
from raysim.rayapi.serve.context import get_multiplexed_model_id, get_replica_context
from raysim.rayapi.serve.deployment import Application, Deployment, deployment
from raysim.rayapi.serve.ingress import ingress
from raysim.rayapi.serve.multiplexing import multiplexed
from raysim.rayapi.serve.serving import (
    RunTarget,
    delete,
    get_app_handle,
    get_deployment_handle,
    run,
    run_many,
    shutdown,
    start,
    status,
)
from raysim.rayapi.serve.validation import HTTPOptions
from raysim.rayapi.unsupported import getattr_of

__getattr__ = getattr_of("ray.serve")

__all__ = [
    "Application",
    "Deployment",
    "HTTPOptions",
    "RunTarget",
    "batch",
    "config",
    "context",
    "delete",
    "deployment",
    "exceptions",
    "get_app_handle",
    "get_deployment_handle",
    "get_multiplexed_model_id",
    "get_replica_context",
    "handle",
    "ingress",
    "multiplexed",
    "rpc",
    "run",
    "run_many",
    "schema",
    "shutdown",
    "start",
    "status",
]
