"""Frames of a moment: Ray's columns, Ray's states, and what a row says when."""

from __future__ import annotations

import pytest

from raysim.raycore.ids import hex_id, object_id
from raysim.raystate.listings import BASE, DETAIL, columns_of, rows
from raysim.raystate.moment import moment
from raysim.raystate.summary import summary
from raysim.results.ray.listing import frame
from tests.unit.results.ray_cases import DRIVER, MS, Story, as_seen_on_a_laptop, options


def one(story: Story, resource: str, t_ms: float | None = None, **wanted):
    now = moment(story.rows, None if t_ms is None else int(t_ms * MS))
    found = [
        row
        for row in rows(now, resource, detail=True)
        if all(row[k] == v for k, v in wanted.items())
    ]
    assert len(found) == 1, found
    return found[0]


def states(story: Story, t_ms: float) -> dict[str, str]:
    now = moment(story.rows, int(t_ms * MS))
    return {row["name"]: row["state"] for row in rows(now, "tasks")}


def test_states_at_a_moment() -> None:
    story = as_seen_on_a_laptop()
    assert states(story, 4) == {
        "a1:A.__init__": "PENDING_ARGS_AVAIL",
        "A.m": "PENDING_ARGS_AVAIL",
        "outer": "PENDING_NODE_ASSIGNMENT",
    }
    assert states(story, 25)["outer"] == "RUNNING_IN_RAY_GET"
    assert states(story, 331.5)["outer"] == "RUNNING"
    assert states(story, 400) == {
        "a1:A.__init__": "FINISHED",
        "A.m": "FINISHED",
        "outer": "FINISHED",
        "f": "FINISHED",
        "never": "PENDING_NODE_ASSIGNMENT",
        "bad": "FAILED",
    }


def test_task_row() -> None:
    row = one(as_seen_on_a_laptop(), "tasks", name="f")
    assert row["task_id"] == hex_id("task", 4)
    assert row["parent_task_id"] == hex_id("task", 3)
    assert (row["type"], row["job_id"], row["attempt_number"]) == ("NORMAL_TASK", "01000000", 0)
    assert (row["worker_pid"], row["node_id"]) == (10_013, hex_id("node", 0))
    assert row["required_resources"] == {"CPU": 1.0}
    assert (row["creation_time_ms"], row["start_time_ms"], row["end_time_ms"]) == (20, 31, 330)
    assert [e["state"] for e in row["events"]] == [
        "PENDING_ARGS_AVAIL",
        "PENDING_NODE_ASSIGNMENT",
        "SUBMITTED_TO_WORKER",
        "RUNNING",
        "FINISHED",
    ]


def test_a_drivers_task_has_the_drivers_task_as_parent() -> None:
    row = one(as_seen_on_a_laptop(), "tasks", name="outer")
    assert row["parent_task_id"] == "f" * 40 + "01000000"


def test_error_of_a_failed_task() -> None:
    row = one(as_seen_on_a_laptop(), "tasks", name="bad")
    assert (row["error_type"], row["error_message"]) == ("TASK_EXECUTION_EXCEPTION", "gone")


def test_each_attempt_has_a_row() -> None:
    story = Story()
    spec = story.submit(1, options(), 0)
    story.run(1, 1, 5)
    story.fail(1, 10)
    spec.attempt = 1
    story.note("task", 1, "PENDING_ARGS_AVAIL", 11, detail=spec)
    story.run(1, 12, 6, node_id=3)
    found = rows(moment(story.rows), "tasks")
    assert [(r["attempt_number"], r["state"], r["worker_pid"]) for r in found] == [
        (0, "FAILED", 10_005),
        (1, "RUNNING", 10_006),
    ]
    assert found[0]["error_type"] == "WORKER_DIED"
    assert found[1]["error_type"] is None


def test_an_attempt_that_was_given_up_has_failed_when_the_next_begins() -> None:
    story = Story()
    spec = story.submit(1, options(), 0)
    story.run(1, 1, 5)
    story.submit(1, spec.options, 60)
    found = rows(moment(story.rows), "tasks", detail=True)
    assert [r["state"] for r in found] == ["FAILED", "PENDING_ARGS_AVAIL"]
    assert found[0]["end_time_ms"] == 60


def test_workers_die_with_their_node() -> None:
    story = Story()
    story.node(1, 0, CPU=1)
    story.note("worker", 5, "IDLE", 1, node_id=1)
    story.note("node", 1, "DEAD", 2, node_id=1)
    row = one(story, "workers")
    assert (row["is_alive"], row["exit_type"], row["end_time_ms"]) == (False, "SYSTEM_ERROR", 2)


def test_rows_written_ahead_of_the_clock_count_from_their_time() -> None:
    story = Story()
    story.submit(2, options(), 50)
    story.submit(1, options(), 10)
    assert [r["task_id"] for r in rows(moment(story.rows, 20 * MS), "tasks")] == [hex_id("task", 1)]


def test_actor_row() -> None:
    story = as_seen_on_a_laptop()
    assert one(story, "actors", 5)["state"] == "PENDING_CREATION"
    assert one(story, "actors", 5)["node_id"] is None
    row = one(story, "actors")
    assert (row["class_name"], row["name"], row["state"], row["pid"]) == (
        "A",
        "a1",
        "ALIVE",
        10_012,
    )
    assert row["required_resources"] == {}


def test_objects_of_running_and_finished_tasks() -> None:
    story = as_seen_on_a_laptop()
    pending = one(story, "objects", 25, object_id=hex_id("object", object_id(4, 1)))
    assert (pending["object_size"], pending["task_status"]) == (-1, "PENDING_NODE_ASSIGNMENT")
    done = one(story, "objects", 400, object_id=hex_id("object", object_id(4, 1)))
    assert (done["object_size"], done["task_status"]) == (8, "FINISHED")
    assert (done["type"], done["reference_type"]) == ("DRIVER", "LOCAL_REFERENCE")


def test_actor_handle_is_an_object() -> None:
    row = one(as_seen_on_a_laptop(), "objects", reference_type="ACTOR_HANDLE")
    assert (row["object_size"], row["task_status"]) == (-1, "NIL")


def test_argument_of_a_waiting_task_is_used_by_it() -> None:
    story = Story()
    number = object_id(9, 3)
    story.note("object", number, "CREATED", 0, node_id=0, detail=(100, DRIVER, True))
    story.submit(1, options(), 1, args=(number,))
    assert one(story, "objects", object_size=100)["reference_type"] == "USED_BY_PENDING_TASK"
    story.run(1, 2, 5)
    story.finish(1, 9)
    assert one(story, "objects", object_size=100)["reference_type"] == "LOCAL_REFERENCE"


def test_an_object_lives_until_its_last_copy_is_freed() -> None:
    story = Story()
    story.note("object", 5, "CREATED", 0, node_id=0, detail=(100, DRIVER, True))
    story.note("object", 5, "COPY", 1, node_id=1, detail=(100, DRIVER, False))
    story.note("object", 5, "SPILLED", 2, node_id=0)
    story.note("object", 5, "FREED", 3, node_id=0)
    kept = moment(story.rows).objects[5]
    assert kept.copies == {1: False}
    assert not kept.spilled
    story.note("object", 5, "FREED", 4, node_id=1)
    assert rows(moment(story.rows), "objects") == []


def test_copies_die_with_their_node() -> None:
    story = Story()
    story.node(1, 0, CPU=1)
    story.note("object", 5, "CREATED", 1, node_id=1, detail=(100, DRIVER, True))
    story.note("node", 1, "DEAD", 2, node_id=1)
    assert not moment(story.rows).objects[5].there


def test_dead_node_row() -> None:
    story = Story()
    story.node(0, 0, CPU=2)
    story.node(1, 5, CPU=4)
    story.note("node", 1, "DEAD", 9, node_id=1)
    row = one(story, "nodes", node_name="10.0.0.1")
    assert (row["state"], row["start_time_ms"], row["end_time_ms"]) == ("DEAD", 5, 9)
    assert row["resources_total"] == {"CPU": 4.0}
    assert one(story, "nodes", 6, node_name="10.0.0.1")["end_time_ms"] == 0
    assert one(story, "nodes", node_name="10.0.0.0")["is_head_node"]


def test_a_draining_node_is_alive() -> None:
    story = Story()
    story.node(0, 0, CPU=2)
    story.note("node", 0, "DRAINING", 1, node_id=0)
    assert (one(story, "nodes")["state"], one(story, "nodes")["state_message"]) == (
        "ALIVE",
        "Draining",
    )


def test_workers_and_the_driver() -> None:
    story = as_seen_on_a_laptop()
    story.note("worker", 13, "STARTING", 22, node_id=0)
    story.note("worker", 13, "IDLE", 29, node_id=0)
    story.note("worker", 13, "DEAD", 1500, node_id=0, detail="idle for a long time")
    driver = one(story, "workers", worker_type="DRIVER")
    assert (driver["pid"], driver["is_alive"], driver["worker_launch_time_ms"]) == (
        10_001,
        True,
        -1,
    )
    idle = one(story, "workers", pid=10_013)
    assert (idle["exit_type"], idle["start_time_ms"], idle["end_time_ms"]) == (
        "INTENDED_SYSTEM_EXIT",
        29,
        1500,
    )


@pytest.mark.parametrize(
    ("detail", "kind"),
    [
        ("Worker exited because it was idle for a long time", "INTENDED_SYSTEM_EXIT"),
        ("Task was killed due to the node running low on memory: OOM", "NODE_OUT_OF_MEMORY"),
        ("exit_actor() was called", "INTENDED_USER_EXIT"),
        ("OUT_OF_MEMORY", "NODE_OUT_OF_MEMORY"),
        ("placement group removed", "INTENDED_SYSTEM_EXIT"),
        ("driver exited", "INTENDED_USER_EXIT"),
        ("killed by SIGKILL", "SYSTEM_ERROR"),
    ],
)
def test_exit_types(detail: str, kind: str) -> None:
    story = Story()
    story.note("worker", 3, "DEAD", 1, node_id=0, detail=detail)
    assert one(story, "workers")["exit_type"] == kind


def test_placement_group_row() -> None:
    story = Story()
    story.group(2, "CREATED", 1, (0, 1), {"CPU": 1}, {"CPU": 2})
    row = one(story, "placement_groups")
    assert (row["name"], row["state"]) == ("pg", "CREATED")
    assert [b["unit_resources"] for b in row["bundles"]] == [{"CPU": 1.0}, {"CPU": 2.0}]
    assert row["bundles"][1]["node_id"] == hex_id("node", 1)


def test_filters() -> None:
    now = moment(as_seen_on_a_laptop().rows)
    assert [r["name"] for r in rows(now, "tasks", filters=[("state", "=", "failed")])] == ["bad"]
    assert len(rows(now, "tasks", filters=[("type", "!=", "NORMAL_TASK")])) == 2
    with pytest.raises(ValueError, match="no column 'sate'"):
        rows(now, "tasks", filters=[("sate", "=", "FAILED")])
    with pytest.raises(ValueError, match="one of tasks, actors"):
        rows(now, "task")


@pytest.mark.parametrize("resource", BASE)
def test_an_empty_log_has_empty_frames(resource: str) -> None:
    empty = frame(moment([]), resource)
    assert empty.empty
    assert tuple(empty.columns) == columns_of(resource, detail=True)


def test_summaries() -> None:
    now = moment(as_seen_on_a_laptop().rows)
    tasks = summary(now, "tasks")["cluster"]
    counts = (tasks["total_tasks"], tasks["total_actor_tasks"], tasks["total_actor_scheduled"])
    assert counts == (4, 1, 1)
    assert tasks["summary"]["bad"]["state_counts"] == {"FAILED": 1}
    assert summary(now, "actors")["cluster"]["summary"]["A"]["state_counts"] == {"ALIVE": 1}
    objects = summary(now, "objects")["cluster"]
    assert objects["summary"]["disabled"]["ref_type_counts"]["ACTOR_HANDLE"] == 1


def test_a_finished_job_ends_its_driver() -> None:
    story = as_seen_on_a_laptop()
    story.note("job", 1, "RUNNING", 0)
    story.note("job", 1, "FINISHED", 500)
    assert one(story, "workers", worker_type="DRIVER")["end_time_ms"] == 500


# ---- against Ray itself --------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize(
    ("resource", "schema"),
    [
        ("tasks", "TaskState"),
        ("actors", "ActorState"),
        ("objects", "ObjectState"),
        ("nodes", "NodeState"),
        ("workers", "WorkerState"),
        ("placement_groups", "PlacementGroupState"),
    ],
)
def test_columns_are_rays(resource: str, schema: str) -> None:
    common = pytest.importorskip("ray.util.state.common")
    real = getattr(common, schema)
    assert list(BASE[resource]) == real.list_columns(detail=False)
    assert set(BASE[resource] + DETAIL[resource]) == set(real.list_columns(detail=True))
    for row in rows(moment(as_seen_on_a_laptop().rows), resource, detail=True):
        real(**row)


@pytest.mark.real
def test_summaries_are_rays() -> None:
    common = pytest.importorskip("ray.util.state.common")
    from dataclasses import asdict

    now = moment(as_seen_on_a_laptop().rows)
    tasks = rows(now, "tasks", detail=True)
    real = asdict(common.TaskSummaries.to_summary_by_func_name(tasks=tasks))
    assert summary(now, "tasks")["cluster"] == real
    real = asdict(common.ActorSummaries.to_summary(actors=rows(now, "actors")))
    assert summary(now, "actors")["cluster"] == real
    real = asdict(common.ObjectSummaries.to_summary(objects=rows(now, "objects")))
    assert summary(now, "objects")["cluster"] == real


def test_owner_of_a_nested_tasks_object_is_the_worker() -> None:
    story = as_seen_on_a_laptop()
    story.note("worker", 11, "LEASED", 2, node_id=0)
    pending = one(story, "objects", 25, object_id=hex_id("object", object_id(4, 1)))
    assert (pending["pid"], pending["type"]) == (10_011, "WORKER")
