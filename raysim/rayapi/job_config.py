"""The module ``ray.job_config``: what a driver says of its job when it connects.

Real counterpart: ``python/ray/job_config.py`` (ray 2.60). Search paths of other languages and
options of their machines are kept and have no effect.
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.unsupported import getattr_of

LIFETIMES = ("detached", "non_detached")


class JobConfig:
    """``ray.job_config.JobConfig``."""

    def __init__(
        self,
        jvm_options: list[str] | None = None,
        code_search_path: list[str] | tuple[str, ...] | None = None,
        runtime_env: Any = None,
        _client_job: bool = False,
        metadata: dict[str, Any] | None = None,
        ray_namespace: str | None = None,
        default_actor_lifetime: str = "non_detached",
        **_others: Any,
    ) -> None:
        if not isinstance(code_search_path or [], list | tuple):
            raise TypeError(
                f"The type of code search path is incorrect: {type(code_search_path)}"
            )  # fmt: skip
        self.jvm_options = jvm_options or []
        self.code_search_path = code_search_path or []
        self.metadata = metadata or {}
        self.ray_namespace = ray_namespace
        self.set_runtime_env(runtime_env)
        self.set_default_actor_lifetime(default_actor_lifetime)

    @classmethod
    def from_json(cls, job_config_json: dict[str, Any]) -> JobConfig:
        """Of a dictionary."""
        known = ("jvm_options", "code_search_path", "runtime_env", "metadata", "ray_namespace")
        said: dict[str, Any] = {name: job_config_json.get(name) for name in known}
        return cls(**said)

    def set_metadata(self, key: str, value: str) -> None:
        """One entry."""
        self.metadata[key] = value

    def set_runtime_env(self, runtime_env: Any, validate: bool = False) -> None:
        """Of all its tasks and actors."""
        del validate  # it is validated when the driver connects
        self.runtime_env = runtime_env if runtime_env is not None else {}

    def set_ray_namespace(self, ray_namespace: str) -> None:
        """Of its named actors."""
        self.ray_namespace = ray_namespace

    def set_default_actor_lifetime(self, default_actor_lifetime: str) -> None:
        """Of actors that say nothing.

        Raises
        ------
        ValueError
            It is neither ``detached`` nor ``non_detached``.
        """
        if default_actor_lifetime not in LIFETIMES:
            raise ValueError("Default actor lifetime must be one of `detached`, `non_detached`")
        self.default_actor_lifetime = default_actor_lifetime

    def applied_to(self, given: dict[str, Any]) -> dict[str, Any]:
        """What ``ray.init`` is given, with what it leaves open."""
        said = {"namespace": self.ray_namespace, "runtime_env": self.runtime_env or None}
        return {**given, **{name: given.get(name) or value for name, value in said.items()}}


__getattr__ = getattr_of("ray.job_config")
