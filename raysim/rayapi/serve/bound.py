"""Applications that a script binds and leaves to Ray's command line: ``serve run FILE:NAME``.

Real counterpart: ``serve run`` in ``python/ray/serve/scripts.py`` (ray 2.60), which deploys and
then waits to be interrupted. Here the run ends when the application is ready, for nobody asks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raysim.rayapi.fibers import HUB
from raysim.rayapi.serve.deployment import Application
from raysim.rayapi.serve.serving import run, serve_of

_USUAL = "app"
"""What Ray's pages call it: taken where a script binds several."""


def run_bound(names: Mapping[str, Any]) -> None:
    """Deploy the application of a script that has run nothing else.

    Parameters
    ----------
    names
        The script's globals, when it has ended.
    """
    chosen = _outermost(names)
    session = HUB.current.process.session if HUB.current is not None else None
    if not chosen or session is None or session.exports or serve_of(session).used:
        return
    name = _USUAL if _USUAL in chosen else chosen[-1]
    file = str(names.get("__file__", ""))
    serve_of(session).command = f"serve run {file.rpartition('/')[2].removesuffix('.py')}:{name}"
    run(names[name])


def _outermost(names: Mapping[str, Any]) -> list[str]:
    """Of applications that are no argument of another, in the order in which they got a name."""
    bound = {name: value for name, value in names.items() if isinstance(value, Application)}
    inner = {id(app) for outer in bound.values() for app in _within((outer.args, outer.kwargs))}
    return [name for name, app in bound.items() if id(app) not in inner]


def _within(value: Any) -> Iterator[Application]:
    if isinstance(value, Application):
        yield value
        yield from _within((value.args, value.kwargs))
    elif isinstance(value, Mapping):
        yield from _within(list(value.values()))
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _within(item)
