"""``ray.runtime_env``: what a worker must have before it runs a task.

Real counterpart: ``python/ray/runtime_env`` and ``_private/runtime_env``. ``env_vars`` are set
around the code of the worker's tasks, which run in the ``working_dir`` and can import from it and
from ``py_modules``: the directories themselves, not copies of them. Everything else is not made,
only paid for: the first worker of an environment on a node waits ``setup_s``, which depends on what
is asked for; a path that is not there fails as in Ray.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from raysim.raycore.tasks import RuntimeEnv as CoreRuntimeEnv

FIELDS = (
    "py_modules", "py_executable", "java_jars", "working_dir", "conda", "pip", "uv", "containers",
    "excludes", "env_vars", "worker_process_setup_hook", "config", "nsight", "rocprof_sys",
    "image_uri", "mpi", "_ray_release", "_ray_commit", "_inject_current_ray",
)  # fmt: skip

SETUP_S = {"pip": 10.0, "uv": 3.0, "conda": 60.0, "working_dir": 1.0, "py_modules": 1.0}
"""First creation on a node; assumed: a small package, a small environment, a small directory."""


class RuntimeEnv(dict[str, Any]):
    """A runtime environment as an object; a dict with checks."""

    def __init__(self, **fields: Any) -> None:
        validate(fields)
        super().__init__({k: v for k, v in fields.items() if v is not None})

    def env_vars(self) -> dict[str, str]:
        """Its environment variables."""
        return dict(self.get("env_vars", {}))

    def serialize(self) -> str:
        """As JSON."""
        return json.dumps(self, sort_keys=True)

    @classmethod
    def deserialize(cls, text: str) -> RuntimeEnv:
        """From JSON."""
        return cls(**json.loads(text))

    def to_dict(self) -> dict[str, Any]:
        """A plain dict."""
        return dict(self)


RuntimeEnv.__module__ = "ray.runtime_env"


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "conda": ((str, dict), "runtime_env['conda'] must be of type str or dict, got {}."),
    "uv": ((str, list, dict), "runtime_env['uv'] must be of type List[str], or dict, got {}"),
    "pip": ((str, list, dict), "runtime_env['pip'] must be of type str or List[str], got {}"),
    "excludes": ((list,), "runtime_env['excludes'] must be of type List[str], got {}"),
    "py_modules": ((list,), "`py_modules` must be a list of strings, got {}."),
    "working_dir": ((str,), "`working_dir` must be a string, got {}."),
}
"""``_private/runtime_env/validation.py``."""


def validate(fields: dict[str, Any]) -> None:
    """Raise what Ray raises for a malformed environment."""
    for name, (kinds, complaint) in _KINDS.items():
        said = fields.get(name)
        if said is not None and not isinstance(said, kinds):
            raise TypeError(complaint.format(type(said)))
    env_vars = fields.get("env_vars")
    if env_vars is not None:
        if not isinstance(env_vars, dict):
            raise TypeError(
                f"runtime_env['env_vars'] must be of type Dict[str, str], got {type(env_vars)}"
            )
        for key, value in env_vars.items():
            if not isinstance(key, str):
                raise TypeError(
                    "runtime_env['env_vars'] must be of type Dict[str, str], but the key "
                    f"{key} is of type {type(key)}"
                )
            if not isinstance(value, str):
                raise TypeError(
                    "runtime_env['env_vars'] must be of type Dict[str, str], but the value "
                    f"{value} is of type {type(value)}"
                )
    if sum(bool(fields.get(name)) for name in ("conda", "pip", "uv")) > 1:
        raise ValueError(
            "The 'pip' field, 'uv' field, and 'conda' field of runtime_env cannot be specified at "
            "the same time.\n"
            f"specified pip field: {fields.get('pip')}\n"
            f"specified conda field: {fields.get('conda')}\n"
            f"specified uv field: {fields.get('uv')}\n"
            "To use pip with conda, please only set the 'conda' field, and specify your pip "
            "dependencies within the conda YAML config dict: see "
            "https://conda.io/projects/conda/en/latest/user-guide/tasks/"
            "manage-environments.html#create-env-file-manually"
        )
    timeout_s = (fields.get("config") or {}).get("setup_timeout_seconds")
    if timeout_s is not None and timeout_s <= 0 and timeout_s != -1:
        raise ValueError(
            f"setup_timeout_seconds must be greater than zero or equals to -1, got: {timeout_s}"
        )


class Uploaded(dict[str, Any]):
    """One of a submitted job, whose client has uploaded its folders."""


def check_places(own: dict[str, Any]) -> None:
    """Of a task or an actor: folders of this machine are for ``ray.init`` to upload."""
    if isinstance(own, Uploaded):
        return
    for place in [own.get("working_dir"), *(own.get("py_modules") or ())]:
        if not isinstance(place, str) or "://" in place:
            continue
        if not Path(place).exists():
            raise ValueError(f"{place} is not a valid path.")
        raise ValueError(
            f"{place} is not a valid URI. Passing directories or modules to be dynamically "
            "uploaded is only supported at the job level (i.e., passed to `ray.init`)."
        )


def made_importable(env: dict[str, Any]) -> Path | None:
    """A worker has this environment: where it works, if it has been told; modules are found."""
    folder = env.get("working_dir")
    here = Path(folder).resolve() if folder and Path(folder).is_dir() else None
    modules = [Path(m) for m in env.get("py_modules") or () if isinstance(m, str)]
    roots = [m.resolve().parent for m in modules if m.is_dir()]
    for path in map(str, roots if here is None else [here, *roots]):
        if path not in sys.path:
            sys.path.insert(0, path)
    return here


def described(env: dict[str, Any]) -> CoreRuntimeEnv | None:
    """What the raylets need to know of it."""
    validate(env)
    env = {k: v for k, v in env.items() if v}
    if not env:
        return None
    working_dir = env.get("working_dir")
    if working_dir and "://" not in working_dir and not Path(working_dir).exists():
        raise ValueError(f"{working_dir} is not a valid path.")
    return CoreRuntimeEnv(
        key=json.dumps(env, sort_keys=True, default=repr),
        setup_s=sum(SETUP_S.get(name, 0.0) for name in env),
    )
