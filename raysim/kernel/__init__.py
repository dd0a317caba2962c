"""Virtual time, rooms, messages, records: the stage every model plays on."""

from raysim.kernel.clock import Clock, Handle, whole_ns
from raysim.kernel.component import (
    Component,
    Cost,
    Failure,
    Message,
    NodeDied,
    Reply,
    RoomDown,
    Timeout,
)
from raysim.kernel.invariants import (
    Checkpoint,
    Divergence,
    EventLog,
    Invariants,
    compare,
    first_divergence,
)
from raysim.kernel.record import (
    ColumnRecorder,
    Counter,
    Instant,
    NullRecorder,
    Recorder,
    Span,
    Track,
)
from raysim.kernel.rng import Streams
from raysim.kernel.simulation import Simulation
from raysim.kernel.transport import InstantTransport, Transport

__all__ = [
    "Checkpoint",
    "Clock",
    "ColumnRecorder",
    "Component",
    "Cost",
    "Counter",
    "Divergence",
    "EventLog",
    "Failure",
    "Handle",
    "Instant",
    "InstantTransport",
    "Invariants",
    "Message",
    "NodeDied",
    "NullRecorder",
    "Recorder",
    "Reply",
    "RoomDown",
    "Simulation",
    "Span",
    "Streams",
    "Timeout",
    "Track",
    "Transport",
    "compare",
    "first_divergence",
    "whole_ns",
]
