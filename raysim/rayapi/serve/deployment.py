"""``@serve.deployment``, ``bind``, and the graph of an application.

Real counterpart: ``python/ray/serve/deployment.py`` and ``_private/build_app.py`` (ray 2.60).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysim.rayapi.serialization import dump_code
from raysim.rayapi.serve.configs import checked, deployment_config
from raysim.rayapi.serve.handle import DeploymentHandle
from raysim.raylibs.serve.config import ApplicationConfig, DeploymentConfig


class Application:
    """Deployments bound to their arguments; what ``serve.run`` takes."""

    def __init__(self, deployment: Deployment, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.deployment = deployment
        self.args = args
        self.kwargs = kwargs


class Deployment:
    """A class or function, and the options it is served under."""

    def __init__(self, target: Any, name: str, options: Mapping[str, Any]) -> None:
        if not isinstance(name, str):
            raise TypeError("name must be a string.")
        if "#" in name:
            raise ValueError(
                f"Deployment names must not contain the '#' character. Current name: {name}."
            )
        self.func_or_class = target
        self.name = name
        self._said = checked(options)

    def __call__(self) -> None:
        """Ray has none."""
        raise RuntimeError(
            "Deployments cannot be constructed directly. Use `deployment.deploy() instead.`"
        )

    def __getattr__(self, name: str) -> Any:
        """``num_replicas`` and the other options, as the replica will have them."""
        if name in {"user_config", "ray_actor_options"}:
            return self._said.get(name)
        if name.startswith("_") or name not in DeploymentConfig.__dataclass_fields__:
            raise AttributeError(f"'Deployment' object has no attribute {name!r}")
        config = deployment_config(self.name, self._said, "")
        return getattr(config, name)

    def bind(self, *args: Any, **kwargs: Any) -> Application:
        """An application whose ingress is this."""
        return Application(self, args, kwargs)

    def options(
        self, func_or_class: Any = None, name: str | None = None, **changes: Any
    ) -> Deployment:
        """A copy under other options."""
        if "version" in changes:
            raise ValueError(_NO_VERSION)
        said = {k: v for k, v in self._said.items() if not (k == "num_replicas" and v is None)}
        if "num_replicas" in changes and changes["num_replicas"] not in (None, "auto"):
            said.pop("autoscaling_config", None)
        elif "autoscaling_config" in changes:
            said.pop("num_replicas", None)
        made = checked(said | changes, "Deployment.options")
        return Deployment(func_or_class or self.func_or_class, name or self.name, made)

    def __repr__(self) -> str:
        return f"Deployment(name={self.name})"


_NO_VERSION = (
    "`version` in `@serve.deployment` has been removed. Serve manages deployment versions "
    "internally."
)


def deployment(_func_or_class: Any = None, name: str | None = None, **options: Any) -> Any:
    """``@serve.deployment``, with options or without."""
    if "version" in options:
        raise ValueError(_NO_VERSION)
    checked(options)

    def decorate(target: Any) -> Deployment:
        return Deployment(target, name or target.__name__, options)

    return decorate(_func_or_class) if callable(_func_or_class) else decorate


# ---- graphs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    """What is deployed of a graph."""

    config: ApplicationConfig
    code: Mapping[str, bytes]
    """By deployment: the class or function and its arguments, pickled."""
    user_configs: Mapping[str, Any]
    """By deployment: what ``reconfigure`` is called with."""


def build(app: Application, name: str) -> Built:
    """Every deployment once, callees first; the arguments that are applications become handles."""
    graph = _Graph(name)
    ingress = graph.add(app)
    return Built(
        ApplicationConfig(name=name, ingress=ingress, deployments=tuple(graph.configs)),
        graph.code, graph.user_configs,
    )  # fmt: skip


class _Graph:
    def __init__(self, app_name: str) -> None:
        self.configs: list[DeploymentConfig] = []
        self.code: dict[str, bytes] = {}
        self.user_configs: dict[str, Any] = {}
        self._app_name = app_name
        self._names: dict[int, str] = {}

    def add(self, app: Application) -> str:
        """Its name in the application; of two with one name the second gets a number."""
        if id(app) in self._names:
            return self._names[id(app)]
        args = self._with_handles(app.args)
        kwargs = self._with_handles(app.kwargs)
        deployed = app.deployment
        name, n = deployed.name, 0
        while name in self.code:
            n += 1
            name = f"{deployed.name}_{n}"
        self._names[id(app)] = name
        said = deployed._said  # noqa: SLF001  (one module)
        code = dump_code((deployed.func_or_class, args, kwargs))
        version = hashlib.sha256(code).hexdigest()[:8]
        self.code[name] = code
        self.user_configs[name] = copy.deepcopy(said.get("user_config"))
        self.configs.append(deployment_config(name, said, version, self._app_name))
        return name

    def _with_handles(self, value: Any) -> Any:
        """Also in lists, tuples and dictionaries."""
        if isinstance(value, Application):
            return DeploymentHandle(self.add(value), self._app_name)
        if isinstance(value, dict):
            return {key: self._with_handles(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._with_handles(item) for item in value)
        return value
