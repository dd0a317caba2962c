"""A sort of terabytes, against arithmetic and itself."""

from __future__ import annotations

import pytest

from raysim.errors import ScenarioError
from raysim.run import run
from raysim.scenario.load import from_mapping


def scenario(nodes=8, node="i4i.4xlarge", directory="/nvme", **said):
    job = {
        "total": "1600GB", "bucket": "s3", "map_parallelism": 0.75, "reduce_parallelism": 0.75,
        "merge_factor": 1, **said,
    }  # fmt: skip
    return from_mapping(
        {
            "name": "sort", "cluster": {"node": node, "nodes": nodes},
            "ray": {"config": {"object_spilling_directory": directory}},
            "jobs": [{"exoshuffle": job}],
        }
    )  # fmt: skip


def metrics(said):
    return run(said, record=False).summary["libraries"][0]["metrics"]


def test_a_few_nodes_stand_for_all():
    whole = metrics(scenario(played_nodes=8, total="800GB"))
    few = metrics(scenario(played_nodes=2, total="800GB"))
    for name in ("map_s", "reduce_s"):
        assert few[name] == pytest.approx(whole[name], rel=0.04)


def test_weak_scaling_is_flat_and_strong_scaling_halves():
    small, large = metrics(scenario(4, total="800GB")), metrics(scenario(8, total="1600GB"))
    assert large["sort_s"] == pytest.approx(small["sort_s"], rel=0.03)
    assert metrics(scenario(8, total="800GB"))["sort_s"] < 0.65 * small["sort_s"]


def test_cores_bind_the_map_stage():
    slow = metrics(scenario(4, total="800GB", map_core_per_byte="60ns"))
    # Twelve maps on eight cores: four share one with another, which adds 0.3 of a core each.
    cores, each_s = 8 + 4 * 0.3, 60e-9 * 2e9
    waves_s = 800e9 / 4 / 2e9 / cores * each_s
    assert waves_s < slow["map_s"] < 1.3 * waves_s


def test_what_is_more_than_the_store_is_spilled_once_and_read_back():
    summary = run(scenario(4, total="800GB"), record=False).summary
    store = summary["object_store"]
    some_blocks = 0.15  # which a full store spills before they are merged into runs
    assert 0.5 * 800e9 < store["spilled_bytes"] < (1 + some_blocks) * 800e9
    assert summary["libraries"][0]["ok"]


def test_one_seed_one_result():
    first, second = (run(scenario(2, total="100GB")).summary for _ in range(2))
    assert first == second


def test_spilling_to_the_root_volume_is_slower_and_said():
    fast, slow = (run(scenario(2, total="120GB", directory=d)) for d in ("/nvme", ""))
    assert fast.summary["warnings"] == []
    assert "root volumes" in slow.summary["warnings"][0]
    times = [r.summary["libraries"][0]["metrics"]["sort_s"] for r in (fast, slow)]
    assert times[1] > 1.5 * times[0]


@pytest.mark.parametrize(
    ("said", "key"), [({"bucket": "s4"}, "bucket"), ({"output_part": "2TB"}, "output_part")]
)
def test_what_does_not_go_is_said_at_its_key(said, key):
    with pytest.raises(ScenarioError, match=f"exoshuffle.{key}"):
        scenario(**said)


def test_the_nodes_own_disks_in_place_of_a_bucket():
    local = metrics(scenario(2, total="200GB", bucket=None))
    assert local["bytes_per_s"] == pytest.approx(200e9 / local["sort_s"])


def test_merges_wait_for_all_blocks_of_their_rounds():
    once, four = (
        metrics(scenario(2, total="200GB", merge_factor=f, merge_core_per_byte="30ns"))
        for f in (1, 4)
    )
    assert four["map_s"] > 1.5 * once["map_s"]  # a quarter of the mergers
