"""Ids are laid out as Ray's, and can be read back."""

from __future__ import annotations

import pytest

from raysim.raycore.ids import FIRST_PUT, Ids, hex_id, job_of, number_of, object_id, task_of


def test_ids_carry_their_actor_and_job() -> None:
    ids = Ids()
    job = ids.job()
    actor = ids.actor(job)
    call, task = ids.task(actor), ids.task(job)
    assert hex_id("job", job) == "01000000"
    assert hex_id("actor", actor)[24:] == "01000000"
    assert hex_id("task", call)[16:] == hex_id("actor", actor)
    assert hex_id("task", task)[16:] == "f" * 24 + "01000000"
    assert hex_id("object", object_id(task, 2)) == hex_id("task", task) + "02000000"
    assert hex_id("object", object_id(job, FIRST_PUT)) == "f" * 40 + "01000000" + "01e1f505"
    assert job_of(task_of(object_id(call, 1))) == job


@pytest.mark.parametrize(
    ("kind", "number"),
    [("job", 3), ("node", 5), ("actor", 7 << 16 | 2), ("task", 9 << 48 | 7 << 16 | 2),
     ("task", 2), ("object", (9 << 48 | 3) << 32 | 1), ("placement_group", 4 << 16 | 1)],
)  # fmt: skip
def test_an_id_is_read_back(kind: str, number: int) -> None:
    assert number_of(kind, bytes.fromhex(hex_id(kind, number))) == number


@pytest.mark.parametrize(("kind", "bits"), [("node", 0), ("worker", 0), ("actor", 16)])
def test_ids_of_a_kind_begin_differently(kind: str, bits: int) -> None:
    first_digits = {hex_id(kind, count << bits | (bits > 0))[:6] for count in range(1, 500)}
    assert len(first_digits) == 499


def test_later_ids_are_greater_whatever_they_belong_to() -> None:
    ids = Ids()
    tasks = [ids.task(of) for of in (9, ids.actor(5), 1, ids.actor(2))]
    assert tasks == sorted(tasks)
