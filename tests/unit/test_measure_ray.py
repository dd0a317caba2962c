"""What is measured of Ray, without Ray: every constant named exists, and which are informed."""

from __future__ import annotations

from dataclasses import fields

import pytest

from raysim.measure.ray_core import calls, objects, processes, threads
from raysim.perf.ray_core import RayCosts

NOT_MEASURED = {
    "core_speed",  # all of the others together
    "submitters_frac",  # needs several programs on many cores
    "mapping_share",  # the kernel's own, asked with a shared mapping alone
    "gcs_message_ns",  # never alone in what a program times
    "unix_socket_ns", "grpc_cross_host_extra_ns",  # the latter needs two hosts
    "grpc_bytes_per_s",  # only in a sum with copying
    "submit_args_ns", "execute_args_ns", "raylet_blocked_ns",  # differences of threads' accounts
    "transfer_ns",  # the same, of two raylets
    "force_exit_ns",  # what a killed process says in its own log
    "execute_after_ns",  # what the fitted ones leave of an actor's account
}  # fmt: skip
OF_LIBRARIES = ("data_", "serve_", "train_", "tune_")
"""Fitted on replays: ``raysim calibrate --family ray_libraries``."""


def all_probes(*, quick: bool) -> list:
    return [
        *objects.probes(quick=quick), *calls.probes(quick=quick), *processes.probes(quick=quick),
        *threads.probes(quick=quick),
        *processes.actors(quick=quick), *objects.transfers(quick=quick),
        *objects.spills(quick=quick, store_bytes=2**27),
    ]  # fmt: skip


def test_every_constant_is_informed_or_said_not_to_be() -> None:
    informed = {name for probe in all_probes(quick=False) for name in probe.informs.split()}
    names = {f.name for f in fields(RayCosts) if not f.name.startswith(OF_LIBRARIES)}
    assert informed == names - NOT_MEASURED


@pytest.mark.parametrize("quick", [True, False])
def test_rows_are_told_apart(quick: bool) -> None:
    keys = [tuple(p.point().parameters.values()) for p in all_probes(quick=quick)]
    assert len(keys) == len(set(keys))
