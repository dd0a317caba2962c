"""``deepspeed.moe``: there to be imported, refused when it is used.

Real counterparts: ``deepspeed/moe/{layer,utils}.py``. Many import it to train dense models.
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def refused(*_args: Any, **_kwargs: Any) -> Any:
        raise NotEmulatedError(f"deepspeed.moe.{name}", "dense layers, or a scenario of the model")

    return refused
