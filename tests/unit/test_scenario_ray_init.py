"""What a script's own ``ray.init`` says of the node it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.scenario.ray_init import init_call, resources_given
from raysim.scenario.script import script_scenario

SCRIPT = """import ray

ray.init(num_cpus=3, resources={"slot": 2}, object_store_memory=200 * 1024**2, namespace="x")
"""


def _script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my_script.py"
    path.write_text(text)
    return path


def test_constants_and_products_of_constants_are_read(tmp_path: Path) -> None:
    call = init_call(_script(tmp_path, SCRIPT))
    assert (call.line, call.unread) == (3, ())
    assert resources_given(call.given) == {"CPU": 3, "slot": 2}
    assert call.given["object_store_memory"] == 200 * 2**20


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("ray.init(num_cpus=args.cpus)", ("num_cpus",)),
        ("ray.init(object_store_memory=2**10**10)", ("object_store_memory",)),
        ("ray.init(num_cpus=4 // 0)", ("num_cpus",)),
        ("ray.init(num_cpus=-1)", ()),
        ("ray.init(resources=[1])", ()),
        ("ray.init(resources=3)", ()),
        ("ray.init(num_cpus={'CPU': 1})", ()),
        ("ray.init(num_cpus=None)", ()),
        ("ray.init(**given)", ()),
        ("other.init(num_cpus=4)", ()),
        ("ray.init(num_cpus=", ()),
    ],
)
def test_what_is_no_size_is_not_taken(tmp_path: Path, text: str, unread: tuple[str, ...]) -> None:
    call = init_call(_script(tmp_path, text))
    assert (call.given, call.unread) == ({}, unread)


def test_the_default_node_has_what_the_script_says(tmp_path: Path) -> None:
    made = script_scenario(_script(tmp_path, SCRIPT))
    [group] = made.cluster.groups
    assert group.resources == {"CPU": 3, "GPU": 0, "slot": 2}
    assert made.job.object_store_bytes == 200 * 2**20
    [said] = made.warnings
    assert said.where is not None
    assert said.where.line == 3
    assert said.message.endswith("with 3 CPU, 2 slot")


def test_python_starts_a_driver_and_no_rank(tmp_path: Path) -> None:
    driver = script_scenario(_script(tmp_path, SCRIPT), launcher="python -u").spec.jobs[0].script
    assert driver is not None
    assert driver.launcher is None
    rank = script_scenario(_script(tmp_path, "import torch\n"), launcher="python -u")
    assert rank.spec.jobs[0].script.launcher == "python -u"  # type: ignore[union-attr]


def test_a_given_cluster_counts_and_the_difference_is_said(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("nodes: 2\nnode: cpu-16\nresources: {slot: 5}\n")
    made = script_scenario(_script(tmp_path, SCRIPT), cluster=cluster)
    [group] = made.cluster.groups
    assert group.resources == {"CPU": 16, "GPU": 0, "slot": 5}
    assert "num_cpus, resources, object_store_memory would start" in made.warnings[-1].message


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    made = script_scenario(_script(tmp_path, "import ray\nray.init(num_cpus=n)\n"))
    assert [w.message for w in made.warnings][-1].startswith("ray.init's num_cpus is no constant")
