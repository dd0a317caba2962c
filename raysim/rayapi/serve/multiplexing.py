"""``@serve.multiplexed``: models that a replica loads when they are asked for.

Real counterpart: ``python/ray/serve/multiplex.py`` (ray 2.60). One model is loaded at a time; the
one that was used longest ago goes. Routers hear which models a replica has.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from functools import wraps
from typing import Any

from raysim.rayapi import asyncio_loop
from raysim.rayapi.serve.context import here
from raysim.rayapi.serve.exceptions import RayServeException


class _Models:
    """Of one loader in one replica."""

    def __init__(self, function: Any, owner: tuple[Any, ...], most: int) -> None:
        self._function = function
        self._owner = owner
        self._most = most
        self._models: OrderedDict[str, Any] = OrderedDict()
        self._free: Any = asyncio_loop.Queue()
        self._free.put_nowait(None)

    async def use(self, model_id: str) -> Any:
        """It, loaded if it is not there."""
        await self._free.get()
        try:
            if model_id in self._models:
                self._models.move_to_end(model_id)
                return self._models[model_id]
            if len(self._models) == self._most:
                await _unload(self._models.popitem(last=False)[1])
            model = self._function(*self._owner, model_id)
            self._models[model_id] = await model if inspect.isawaitable(model) else model
            here("@serve.multiplexed").replica.has_models(list(self._models))
            return self._models[model_id]
        finally:
            self._free.put_nowait(None)


async def _unload(model: Any) -> None:
    """At once; Python calls the method again when nobody has the model, unless it may not."""
    if hasattr(model, "__del__"):
        gone = model.__del__()
        if inspect.isawaitable(gone):
            await gone
        model.__del__ = lambda _: None


def multiplexed(func: Any = None, max_num_models_per_replica: int = 3) -> Any:
    """``@serve.multiplexed``, with options or without.

    Raises
    ------
    TypeError
        It does not load a model by its id, or the number is no number.
    ValueError
        The number is neither positive nor -1.
    """
    if func is not None and not inspect.iscoroutinefunction(func):
        raise TypeError(
            "@serve.multiplexed can only be used to decorate async functions or methods."
        )
    if not isinstance(max_num_models_per_replica, int):
        raise TypeError("max_num_models_per_replica must be an integer.")
    if max_num_models_per_replica != -1 and max_num_models_per_replica <= 0:
        raise ValueError("max_num_models_per_replica must be positive.")

    def decorate(function: Any) -> Any:
        names = list(inspect.signature(function).parameters)
        of_method = len(names) == 2  # self and the model's id

        @wraps(function)
        async def load(*args: Any) -> Any:
            if not args or not isinstance(args[-1], str):
                raise TypeError("The model ID must be a string.")
            if not args[-1]:
                raise ValueError("The model ID cannot be empty.")
            owner = args[:1] if of_method else ()
            most = max_num_models_per_replica
            try:
                replica = here("@serve.multiplexed").replica
            except RayServeException as error:
                raise RuntimeError(
                    "`@serve.multiplex` can only be used within a deployment (failed to retrieve "
                    "Serve replica context)."
                ) from error
            models = replica.kept(function, owner, lambda: _Models(function, owner, most))
            return await models.use(args[-1])

        return load

    return decorate(func) if callable(func) else decorate
