"""The verdict of ``raysim memory``."""

from __future__ import annotations

from raysim.cli.memory import _shown, _shown_of_host, _verdict
from raysim.planner.memory_grid import Cell

GIB = 2**30


def cell(gpu: int, host: int) -> Cell:
    return Cell(3, "all", "full", 1, gpu * GIB, host * GIB, 44 * GIB, 1024 * GIB)


def test_a_node_without_the_memory_is_said_where_the_gpu_has_room() -> None:
    said = _verdict([cell(30, 2691), cell(60, 100)], None)
    assert said.startswith("No layout fits; least is 30.0 GiB: ZeRO 3, offload all")
    assert said.endswith(", whose node needs 2.63 TiB of main memory and has 1.00 TiB.")


def test_a_gpu_without_room_is_enough_of_a_reason() -> None:
    assert "main memory" not in _verdict([cell(60, 2691)], None)
    assert "main memory" not in _verdict([cell(30, 500)], None)


def test_a_node_without_the_memory_is_marked_in_its_own_column() -> None:
    beyond, within = cell(30, 2691), cell(30, 500)
    assert (_shown(beyond, None), _shown_of_host(beyond)) == ("30.0!", "2,691!")
    assert (_shown(within, None), _shown_of_host(within)) == ("30.0 ", "500 ")
