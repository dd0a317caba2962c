"""The recordings in tests/conformance/expected are still what real Ray prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.xdist_group("real clusters"),  # one at a time
]
pytest.importorskip("ray")

from raysim.scenario.declaration import declared_by  # noqa: E402
from tests.conformance import cluster  # noqa: E402
from tests.conformance.real_side import REAL, run_on_ray  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def _stop_the_last_cluster() -> Iterator[None]:
    yield
    REAL.stop()


SLOW = (
    "dag_compiled", "dag_compiled_nodes", "data_columns", "data_files", "data_frames",
    "data_groups", "data_groups_order", "data_iterators", "data_joins", "data_lazy",
    "data_llm_http", "data_llm_serve", "data_maps", "data_mixes", "data_sorts", "data_splits",
    "data_webdataset", "failure_node_running", "placement_group_in_actor",
    "placement_group_node_death",
    "rllib_agents", "rllib_dqn", "rllib_ppo", "schedule_labels", "serve_apps", "serve_batches",
    "serve_cancels", "serve_checks", "serve_clients", "serve_errors", "serve_http",
    "serve_policies", "serve_proxy", "serve_streams", "train_callbacks", "train_checks",
    "train_datasets", "train_ddp_cpu", "train_goes_on", "train_reported", "train_restarts",
    "train_threads", "tune_by_hand", "tune_files", "tune_own", "tune_schedulers",
)  # fmt: skip
"""A third of a minute and more each, of a real cluster on two cores."""


def chosen() -> list[Any]:
    """Every program; one in five of those on the commonest cluster, and all others, in every run.

    The rest are marked ``exhaustive``, as are the slow ones: all of them take 20 minutes.
    """
    common = Counter(declared_by(p).text for p in cluster.programs()).most_common(1)[0][0]
    params, seen = [], 0
    for program in cluster.programs():
        always = declared_by(program).text != common
        if program.stem in SLOW:
            always = False
        elif not always:
            always = seen % 5 == 0
            seen += 1
        marks = () if always else (pytest.mark.exhaustive,)
        params.append(pytest.param(program, marks=marks, id=program.stem))
    return params


@pytest.mark.parametrize("program", chosen())
def test_real_ray_prints_the_recording(program: Path) -> None:
    """A busy machine may starve a real cluster; it is asked again, twice at most."""
    recorded = cluster.recorded(program)
    printed = run_on_ray(program)
    for _ in range(2):
        if printed == recorded:
            break
        REAL.stop()
        printed = run_on_ray(program)
    assert printed == recorded, REAL.errors[-2000:]
