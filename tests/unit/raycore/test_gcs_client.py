"""Calls to a GCS that is away wait, and come back or give up; and the key-value store."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.kernel.component import Failure
from raysim.raycore.config import RayConfig
from raysim.raycore.gcs_client import GcsClient
from raysim.raycore.protocol import InternalKVDel, InternalKVGet, InternalKVPut, KVValue
from tests.unit.raycore.gcs_case import GcsCase


class Scene:
    """A GCS on Redis, a client of it, and what the client got."""

    def __init__(self) -> None:
        self.case = GcsCase(config=RayConfig(gcs_storage="redis"))
        self.gone: list[float] = []
        self.got: list[tuple[float, Any]] = []
        self.client = GcsClient(self.case.me, self.case.env, self.gave_up)

    def gave_up(self) -> None:
        self.gone.append(self.case.sim.now_ns / 1e9)

    def ask(self, message: Any) -> None:
        self.client.call(message, self.answer)

    def answer(self, answer: Any) -> None:
        assert not isinstance(answer, Failure)
        self.got.append((round(self.case.sim.now_ns / 1e9, 3), answer))


def put(key: str) -> InternalKVPut:
    return InternalKVPut("ns", key, key, 10)


def test_keys_are_written_read_and_deleted() -> None:
    scene = Scene()
    for m in (put("a"), put("a"), InternalKVGet("ns", "a"), InternalKVDel("ns", "a"),
              InternalKVDel("ns", "a"), InternalKVGet("ns", "a")):  # fmt: skip
        scene.ask(m)
    scene.case.run(1)
    assert [a for _, a in scene.got] == [True, False, KVValue("a", 10), 1, 0, None]


def test_overwrite_can_be_declined() -> None:
    scene = Scene()
    scene.ask(put("a"))
    scene.ask(InternalKVPut("ns", "a", "other", 5, overwrite=False))
    scene.ask(InternalKVGet("ns", "a"))
    scene.case.run(1)
    assert [a for _, a in scene.got] == [True, False, KVValue("a", 10)]


def test_calls_wait_for_the_gcs_and_go_in_order() -> None:
    scene = Scene()
    scene.case.run(1.0)
    scene.case.gcs.crash()
    scene.ask(put("a"))
    scene.case.run(1.5)
    assert scene.client.away
    scene.ask(InternalKVGet("ns", "a"))
    scene.case.run(4.2)
    scene.case.gcs.restart()
    scene.case.run(10)
    assert scene.got == [(5.0, True), (5.0, KVValue("a", 10))]
    assert (scene.gone, scene.client.away) == ([], False)


def test_a_call_under_way_when_the_gcs_dies_is_sent_again() -> None:
    scene = Scene()
    scene.case.sim.transport.latency_ns = int(0.4e9)  # type: ignore[attr-defined]
    scene.case.run(1.0)
    scene.ask(put("a"))
    scene.case.run(1.2)
    scene.case.gcs.crash()
    scene.case.run(1.7)
    scene.case.gcs.restart()
    scene.case.run(10)
    assert [a for _, a in scene.got] == [True]


@pytest.mark.parametrize("silent", [False, True])
def test_after_60_s_without_the_gcs_the_process_gives_up(silent: bool) -> None:
    scene = Scene()
    scene.case.run(1.0)
    scene.case.gcs.crash()
    scene.ask(put("a"))
    scene.case.run(5.5)
    if silent:
        scene.case.gcs._silent = True
    scene.case.run(200)
    assert len(scene.gone) == 1
    assert 61 <= scene.gone[0] <= 62.1
    assert scene.got == []


def test_an_idle_client_costs_nothing() -> None:
    scene = Scene()
    scene.case.run(1.0)
    scene.case.gcs.crash()
    events = scene.case.sim.log.events
    scene.case.run(500)
    assert scene.case.sim.log.events == events
