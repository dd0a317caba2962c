"""What of the input differs between runs."""

from __future__ import annotations

from raysim.report.changed import Changed, changed_keys, text_diff

FIRST = {"name": "x", "jobs": [{"train": {"micro_batch": 1, "seq_len": 8}}], "seed": 0}


def test_a_changed_key_has_its_name_as_the_command_line_takes_it():
    other = {"name": "x", "jobs": [{"train": {"micro_batch": 2, "seq_len": 8}}], "seed": 0}
    assert changed_keys([FIRST, other]) == [Changed("train.micro_batch", ("1", "2"))]


def test_keys_that_only_one_has_stand_with_a_dash():
    other = {"name": "x", "jobs": [{"train": {"micro_batch": 1}}], "seed": 0, "ray": {"cpus": 4}}
    assert changed_keys([FIRST, other]) == [
        Changed("train.seq_len", ("8", "-")), Changed("ray.cpus", ("-", "4")),
    ]  # fmt: skip


def test_null_is_not_the_same_as_nothing():
    assert changed_keys([{"a": None}, {}]) == [Changed("a", ("null", "-"))]


def test_several_jobs_are_told_apart_and_equals_are_not_there():
    two = {"jobs": [{"script": {"path": "a"}}, {"script": {"path": "b"}}]}
    three = {"jobs": [{"script": {"path": "a"}}, {"script": {"path": "c"}}]}
    assert changed_keys([two, three, two]) == [Changed("1.script.path", ("b", "c", "b"))]
    assert changed_keys([two, two]) == []


def test_long_values_are_cut():
    (found,) = changed_keys([{"a": "x" * 100}, {"a": "y"}])
    assert len(found.cells[0]) == 60


def test_texts_are_compared_by_line():
    assert text_diff("a\nb\n", "a\nc\n", ("A", "B"))[-2:] == ["-b", "+c"]
    assert text_diff("a\n", "a\n", ("A", "B")) == []
