"""Sizes are Ray's: value and metadata (XLANG, RAW, PYTHON). What is read is a copy."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.rayapi.serialization import (
    deregister,
    deserialize,
    dump_code,
    load_code,
    register,
    serialize,
)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, 10), (1, 10), (300, 12), (2**40, 18), (1.5, 18), ("", 10), ("a" * 1000, 1012),
        ("a" * 100_000, 100_014), (b"x" * 1000, 1000),
    ],
)  # fmt: skip
def test_plain_values_have_rays_size(value, size: int) -> None:
    assert serialize(value).size_bytes == size + (3 if isinstance(value, bytes) else 5)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ((1, 2), 51), (np.zeros(1), 244), (np.zeros(1000), 8240), (np.zeros((10, 10)), 1042),
        (np.zeros(10**6), 8_000_247), ([np.zeros(10), np.zeros(10)], 440), (np.float64(1), 150),
    ],
)  # fmt: skip
def test_pickled_values_are_close_to_rays_size(value, size: int) -> None:
    assert serialize(value).size_bytes == pytest.approx(size + 6, abs=8)


def test_what_is_read_is_a_copy() -> None:
    value = {"a": [1]}
    payload = serialize(value)
    value["a"].append(2)
    first, second = deserialize(payload), deserialize(payload)
    assert first == second == {"a": [1]}
    assert first is not second


def test_arrays_are_read_only_and_snapshots() -> None:
    array = np.arange(4)
    payload = serialize(array)
    array[0] = 9
    read = deserialize(payload)
    assert read.tolist() == [0, 1, 2, 3]
    assert not read.flags.writeable


def test_a_registered_class_is_serialised_its_own_way() -> None:
    class Thing:
        def __init__(self, n):
            self.n = n

    register(Thing, serializer=lambda thing: thing.n + 1, deserializer=Thing)
    try:
        assert deserialize(serialize(Thing(1))).n == 2
    finally:
        deregister(Thing)
    assert deserialize(serialize(Thing(1))).n == 1


@pytest.mark.parametrize(
    "travel", [lambda f: load_code(dump_code(f)), lambda f: deserialize(serialize(f))]
)
def test_functions_of_a_script_keep_their_file(travel, in_tmp):
    """As Ray's do: tracebacks of tasks said <dynamic-code>, and no line of the source."""
    script = {"__name__": "__main__"}
    exec(compile("def task():\n    return missing", "mine.py", "exec"), script)
    with pytest.raises(NameError) as raised:
        travel(script["task"])()
    last = raised.value.__traceback__.tb_next
    assert (last.tb_frame.f_code.co_filename, last.tb_lineno) == ("mine.py", 2)
