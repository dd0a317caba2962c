"""What came of an application's requests, as the report says it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from raysim.raylibs.report import LibraryReport
from raysim.raylibs.serve.report import ServeReport, of_requests
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    from raysim.rayapi.serve.serving import Served


def report_of(served: Served) -> LibraryReport:
    """Of all requests from outside, from when the application ran to now."""
    from raysim.rayapi.serve.serving import serve_of

    running = served.running
    assert running is not None, "an application that was deployed"
    span_s = served.ran_ns / NS_PER_S, served.session.sim.now_ns / NS_PER_S
    outcome = of_requests(served.log, running, span_s)
    start_s = (served.ran_ns - served.began_ns) / NS_PER_S
    made = ServeReport(outcome, running.timeline, span_s, start_s).made(())
    command = serve_of(served.session).command
    if command and not running.refusal:
        count = sum(steps[-1][1] for steps in running.timeline.runs.values() if steps)
        text = (
            f"The script binds an application and asks it nothing: played is `{command}` until it "
            f"runs ({start_s:.3g} s, replicas: {count:,}). To see requests answered, take a "
            "script that calls serve.run() and sends them."
        )
        made = replace(made, text=text)
    return replace(made, ok=True)  # a program may ask for nothing, and says itself if it fails
