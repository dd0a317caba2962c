"""``@serve.ingress``: an ASGI application, such as FastAPI's, in front of a deployment.

Real counterpart: ``serve.ingress`` of ``python/ray/serve/api.py`` and
``make_fastapi_class_based_view`` of ``_private/http_util.py`` (ray 2.60). Routes that are methods
of the class get the replica's instance as ``self``.

Not modelled: builder functions, the application's lifespan.
"""

from __future__ import annotations

import copyreg
import inspect
import sys
from collections.abc import Callable
from typing import Any

from raysim.rayapi.serialization import dump_code, load_code
from raysim.rayapi.serve.context import here
from raysim.rayapi.unsupported import NotEmulatedError


def ingress(app: Any = None) -> Callable[..., Any]:
    """Wrap a class.

    Raises
    ------
    ValueError
        It is no class, or answers calls itself.
    """
    if app is None or inspect.isfunction(app):
        raise NotEmulatedError("serve.ingress(builder)", "serve.ingress(app)")

    def decorate(cls: Any = None) -> Any:
        wrapped = type("ASGIIngressDeployment", (), {}) if cls is None else cls
        if not inspect.isclass(wrapped):
            raise ValueError("@serve.ingress must be used with a class.")
        if "__call__" in wrapped.__dict__:
            raise ValueError("Classes passed to @serve.ingress may not have __call__ method.")
        if hasattr(app, "routes") and hasattr(app, "add_api_route"):
            _bind_routes(app, wrapped)
        _let_states_travel()
        target: Any = wrapped
        frozen = load_code(dump_code(app))  # what is added to it from here on does not count
        target._serve_asgi_app = staticmethod(frozen)  # noqa: SLF001  (read in the replica)
        return wrapped

    return decorate


def _let_states_travel() -> None:
    """starlette's ``State`` looks for what pickle asks it in itself, and never ends.

    FastAPI's included routers hold a lock.
    """
    from starlette.datastructures import State

    copyreg.pickle(State, lambda state: (State, (dict(state._state),)))  # noqa: SLF001
    routing = sys.modules.get("fastapi.routing")
    included: Any = getattr(routing, "_IncludedRouter", None)  # from FastAPI 0.137 on
    if included is not None:
        copyreg.pickle(included, lambda r: (included, (r.original_router, r.include_context)))


def _bind_routes(app: Any, cls: type) -> None:
    """Routes whose endpoint is a method of the class take its instance for ``self``."""
    from fastapi import Depends

    own = {id(member) for member in vars(cls).values() if callable(member)}
    routes = [r for r in app.routes if id(getattr(r, "endpoint", None)) in own]
    for route in routes:
        endpoint = route.endpoint
        if not hasattr(route, "methods"):
            raise NotEmulatedError(f"the websocket route {route.path}", "routes of HTTP")
        signature = inspect.signature(endpoint)
        first, *others = signature.parameters.values()
        instance = first.replace(default=Depends(_given), kind=inspect.Parameter.KEYWORD_ONLY)
        keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in others]
        endpoint.__signature__ = signature.replace(parameters=[instance, *keywords])
        app.routes.remove(route)
        app.add_api_route(
            route.path, endpoint, methods=route.methods, response_model=route.response_model,
            status_code=route.status_code, name=route.name,
            include_in_schema=route.include_in_schema, response_class=route.response_class,
        )  # fmt: skip


async def _given() -> Any:
    return here("a route of a deployment").replica.target
