"""Arguments of a call: checked against the function's signature when it is submitted.

Real counterpart: ``python/ray/_common/signature.py``. Keywords travel as names beside the values;
Ray flattens them into one list with a marker before each positional value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

Parameters = list[inspect.Parameter]


def extract(function: Callable[..., Any], *, ignore_first: bool = False) -> Parameters:
    """The parameters of a function, or of a method without its ``self``."""
    parameters = list(inspect.signature(function).parameters.values())
    if not ignore_first:
        return parameters
    if not parameters:
        raise ValueError(
            "Methods must take a 'self' argument, but the "
            f"method '{function.__name__}' does not have one."
        )
    return parameters[1:]


class Signature:
    """Checks calls; most are of plain positional parameters and need no binding."""

    __slots__ = ("_bind", "_largest", "_smallest", "parameters")

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self._bind = inspect.Signature(parameters).bind
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._smallest, self._largest = 0, -1
        if all(p.kind in plain for p in parameters):
            self._largest = len(parameters)
            self._smallest = sum(p.default is inspect.Parameter.empty for p in parameters)

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise Python's own TypeError if the arguments do not fit."""
        if not kwargs and self._smallest <= len(args) <= self._largest:
            return
        try:
            self._bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(str(error)) from None
