"""Least squares over known functions: what is fitted, what is left alone, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from raysim.calibrate.direct import direct_constants
from raysim.calibrate.fit import fit
from raysim.calibrate.outcome import compare, lines, profile_of_fit
from raysim.calibrate.parameters import Parameter, parameters
from raysim.calibrate.rows import Measured, RowKey, read_replays
from raysim.errors import CalibrationError
from raysim.perf.profile import Profile
from raysim.perf.ray_core import RayCosts
from raysim.scenario.profile import profile_data, profile_of
from raysim.scenario.yaml_text import parse_yaml_all

VALUES = "value,unit,repetitions,low,high"


def constant(name: str, prior: float = 100.0, far: float = 30.0) -> Parameter:
    return Parameter(name=name, prior=prior, lower=prior / far, upper=prior * far)


def predict(values: Mapping[str, float]) -> dict[RowKey, float]:
    """Two rows of their own, one of a sum, one that nothing moves."""
    v = dict.fromkeys("abcd", 100.0) | dict(values)
    return {
        ("w", "a"): 3 * v["a"], ("w", "ab"): v["a"] + 2 * v["b"], ("w", "cd"): v["c"] + v["d"],
        ("w", "none"): 7.0,
    }  # fmt: skip


def rows(true: Mapping[str, float], role: str = "calibration") -> list[Measured]:
    return [Measured(key=key, role=role, value=v) for key, v in predict(true).items()]  # type: ignore[arg-type]


def test_what_rows_say_is_found_and_the_rest_stays_where_it_was() -> None:
    names = [constant("a"), constant("b"), constant("nobody")]
    found = fit(names, predict, rows({"a": 250.0, "b": 30.0}), model_error=0.001)
    assert found.values == pytest.approx({"a": 250.0, "b": 30.0, "nobody": 100.0}, rel=1e-3)
    nobody = found.constants[2]
    assert (nobody.determined, nobody.value, nobody.rows) == (False, 100.0, ())
    assert nobody.why == "no row responds to it"
    assert found.constants[0].rows == (("w", "a"), ("w", "ab"))


def test_of_two_that_are_only_seen_together_one_is_fitted() -> None:
    found = fit([constant("c"), constant("d")], predict, rows({"c": 200.0, "d": 200.0}))
    c, d = found.constants
    assert (c.determined, d.determined, d.value) == (True, False, 100.0)
    assert (c.why, d.why) == ("stands for d too", "not told apart from c")
    assert c.value == pytest.approx(300.0, rel=0.02)


def test_of_two_minima_the_deeper_is_kept_if_the_start_leads_to_it() -> None:
    def valleys(values: Mapping[str, float]) -> dict[RowKey, float]:
        """Of a's logarithm u: u * u - 1 off in one row, 0.3 (u - 1) in the other."""
        u = math.log(values["a"] / 100.0)
        return {("w", "p"): math.exp(u * u - 1), ("w", "q"): math.exp(0.3 * (u - 1))}

    ones = [Measured(key=("w", n), role="calibration", value=1.0) for n in "pq"]
    a = replace(constant("a", prior=100.0 * math.exp(-0.5)), sigma=30.0)
    for start, u in ((None, -1), ({"a": 100.0 * math.exp(-1.5)}, -1), ({"a": 150.0}, 1)):
        found = fit([a], valleys, ones, start=start).values["a"]
        assert math.log(found / 100.0) == pytest.approx(u, abs=0.1)


def test_what_is_carried_keeps_its_ratio() -> None:
    c = replace(constant("c"), carries={"d": 100.0})
    found = fit([c], predict, rows({"c": 220.0, "d": 220.0}), model_error=0.001)
    assert found.values == pytest.approx({"c": 220.0}, rel=1e-3)
    profile = profile_of_fit(found, name="here", made="", source="")
    assert profile.ray["d"].value == pytest.approx(220.0, rel=1e-3)
    assert profile.ray["d"].source == "as c: rows see only the sum"
    assert "carries d" in "\n".join(lines(found, []))


def test_a_row_may_be_less_sure_than_the_others_and_says_nothing_of_the_spread() -> None:
    plain = Measured(key=("w", "p"), role="calibration", value=100.0)
    account = Measured(key=("w", "x"), role="calibration", value=200.0, model_error=0.5)

    def same(values: Mapping[str, float]) -> dict[RowKey, float]:
        return {("w", "p"): values["a"], ("w", "x"): values["a"]}

    found = fit([constant("a")], same, [plain, account])
    assert found.values["a"] == pytest.approx(100.0, rel=0.02)
    off = math.log(found.values["a"] / 100.0)
    assert found.spread == pytest.approx(abs(off) * math.sqrt(2), rel=0.01)


def test_a_bound_is_kept_and_said() -> None:
    found = fit([constant("a", far=1.5)], predict, rows({"a": 400.0}))
    (a,) = found.constants
    assert a.value == pytest.approx(150.0)
    assert a.at_bound == "upper"
    assert "at its upper bound" in "\n".join(lines(found, []))


def test_an_outlier_does_not_rule() -> None:
    many = [Measured(key=("w", str(i)), role="calibration", value=200.0) for i in range(9)]
    wild = Measured(key=("w", "9"), role="calibration", value=20_000.0)

    def same(values: Mapping[str, float]) -> dict[RowKey, float]:
        return {("w", str(i)): values["a"] for i in range(10)}

    found = fit([constant("a")], same, [*many, wild])
    assert found.values["a"] == pytest.approx(200.0, rel=0.05)


def test_a_fit_says_how_far_off_it_is() -> None:
    """Twice and half of what one constant can be: ln 2 either way, with one degree of freedom."""
    rows = [
        Measured(key=("w", name), role="calibration", value=value)
        for name, value in (("a", 50.0), ("b", 200.0))
    ]

    def same(values: Mapping[str, float]) -> dict[RowKey, float]:
        return dict.fromkeys((row.key for row in rows), values["a"])

    found = fit([constant("a")], same, rows)
    assert found.spread == pytest.approx(math.sqrt(2) * math.log(2), rel=0.01)
    profile = profile_of_fit(found, name="here", made="", source="")
    low, high = profile.interval(10.0)
    assert low * high == pytest.approx(100.0)
    assert math.log(high / 10.0) == pytest.approx(1.2816 * found.spread, rel=0.01)
    with pytest.raises(ValueError, match="has no spread"):
        Profile(name="none").interval(1.0)


def test_a_quiet_row_weighs_more_than_a_noisy_one() -> None:
    quiet = Measured(key=("w", "q"), role="calibration", value=100.0, repetitions=5)
    noisy = Measured(
        key=("w", "n"), role="calibration", value=150.0, repetitions=1, low=75.0, high=300.0
    )

    def same(values: Mapping[str, float]) -> dict[RowKey, float]:
        return {("w", "q"): values["a"], ("w", "n"): values["a"]}

    found = fit([constant("a")], same, [quiet, noisy])
    assert found.values["a"] == pytest.approx(100.0, rel=0.02)


def test_a_validation_row_is_never_fitted() -> None:
    bad = [*rows({}), Measured(key=("judge", "x"), role="validation", value=1.0)]
    with pytest.raises(CalibrationError, match="judge/x: a validation row is never fitted"):
        fit([constant("a")], predict, bad)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": []}, "no calibration row"),
        ({"parameters": []}, "no constant to fit"),
        ({"rows": [*rows({}), *rows({})]}, "a measured row is there twice"),
        ({"predict": lambda _: {}}, "w/a: measured, but the emulator does not print it"),
        (
            {"predict": lambda _: dict.fromkeys(predict({}), -1.0)},
            "w/a: predicted -1, which has no ratio",
        ),
    ],
)
def test_what_cannot_be_fitted_is_said(change: dict[str, object], said: str) -> None:
    asked: dict[str, object] = {"parameters": [constant("a")], "predict": predict, "rows": rows({})}
    with pytest.raises(CalibrationError, match=said):
        fit(**(asked | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prior", "lower", "upper"), [(5.0, 10.0, 20.0), (5.0, 0.0, 9.0), (5.0, 5.0, 5.0)]
)
def test_impossible_bounds_are_refused(prior: float, lower: float, upper: float) -> None:
    with pytest.raises(CalibrationError, match="x: expected 0 < lower <= prior <= upper"):
        Parameter(name="x", prior=prior, lower=lower, upper=upper)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["get_nss"], "unknown constant 'get_nss'; did you mean 'get_ns'"),
        (["get_ns", "get_ns"], "get_ns is named twice"),
    ],
)
def test_names_are_checked(names: list[str], said: str) -> None:
    with pytest.raises(CalibrationError, match=said):
        parameters(names)


def test_a_constant_without_a_value_cannot_be_fitted() -> None:
    with pytest.raises(CalibrationError, match="network_latency_s has no value to begin from"):
        parameters(["network_latency_s"], "training")


def test_the_table_keeps_fitted_rows_and_the_others_apart() -> None:
    true = {"a": 250.0, "b": 30.0}
    fitted, judged = rows(true)[:1], rows(true, "validation")[1:2]
    held = rows(true)[2:3]
    found = fit([constant("a")], predict, fitted)
    both, missing = compare([*fitted, *held, *judged], predict({}), predict(found.values))
    said = "\n".join(lines(found, both, missing))
    titles = ["Fitted rows", "Calibration rows that were not fitted", "Validation rows"]
    places = [said.index(f"\n{title}: median error") for title in titles]
    assert places == sorted(places)
    assert said.index("w/a ") < places[1] < said.index("w/cd ") < places[2] < said.index("w/ab ")
    assert missing == []


def test_a_profile_holds_what_was_determined_and_reads_back() -> None:
    def one(values: Mapping[str, float]) -> dict[RowKey, float]:
        return {("w", "get"): values["get_ns"] * 2}

    measured = [Measured(key=("w", "get"), role="calibration", value=80_000.0)]
    found = fit(parameters(["get_ns", "put_ns"]), one, measured)
    profile = profile_of_fit(found, name="here", made="2026-11-22", source="one row")
    assert list(profile.ray) == ["get_ns"]
    assert profile.ray["get_ns"].rows == ("w/get",)
    assert profile.ray["get_ns"].prior == RayCosts().get_ns
    from raysim.results.result import yaml_text

    (document,) = parse_yaml_all(yaml_text(profile_data(profile)), "profile.yaml")
    assert profile_of(document) == profile


# ---- files ---------------------------------------------------------------------------------------


def test_replayed_rows_have_the_role_of_their_file(tmp_path: Path) -> None:
    for role in ("calibration", "validation"):
        text = f"workload,row,{VALUES}\ntasks,{role},1.5,s,3,1.4,1.6\n"
        (tmp_path / f"replay_ray_core_{role}.csv").write_text(text)
    first, second = read_replays(tmp_path, "ray_core")
    assert (first.role, first.key, first.value) == ("calibration", ("tasks", "calibration"), 1.5)
    assert (second.role, second.family) == ("validation", "ray_core")
    assert 0.05 < first.spread < 0.06


@pytest.mark.parametrize(
    ("line", "said"),
    [("tasks,x,0,s,3,0,0", ":2: tasks/x is 0; only a positive value"), ("", "no rows in replay_")],
)
def test_rows_that_say_nothing_are_refused(tmp_path: Path, line: str, said: str) -> None:
    table = "\n".join([f"workload,row,{VALUES}", *[line] * bool(line), ""])
    (tmp_path / "replay_ray_core_calibration.csv").write_text(table)
    with pytest.raises(CalibrationError, match=said):
        read_replays(tmp_path, "ray_core")


def test_a_table_of_ray_says_some_constants_by_itself(tmp_path: Path) -> None:
    assert direct_constants(tmp_path) == {}
    table = [
        "task_submit,1000,0,submit_task_ns,0.0002,s,9,0.00018,0.00022",
        "spill,4,16777216,spill_bytes_per_s,9e8,B/s,9,8e8,1e9",
        "spill,48,2097152,spill_bytes_per_s,5e8,B/s,9,5e8,6e8",
        "wait,1,0,wait_ns per_ref_wait_ns,0.00005,s,9,0.00005,0.00005",
        "wait,1000,0,wait_ns per_ref_wait_ns,0.00055,s,9,0.0005,0.0006",
        "call_with_args,10,0,per_arg_ns,0.001,s,9,0.001,0.001",
        "worker_start,12,0,worker_start_core_s worker_start_sigma,1.2,s,9,1,1.5",
        "kv_put,1,0,gcs_kv_ns grpc_same_host_ns,0.0003,s,9,0.0002,0.0004",
        "spill_again,4,16777216,spill_again_bytes_per_s,2e9,B/s,9,1e9,3e9",
        "restore,4,16777216,restore_bytes_per_s restore_ns,4194304e3,B/s,9,3e9,5e9",
        "restore,48,2097152,restore_bytes_per_s restore_ns,932067e3,B/s,9,8e8,1e9",
        "actor_call_sync,1,0,execute_ns,0.0005,s,9,0.0004,0.0006",
        "transfer,1,262144,copy_bytes_per_s chunk_ns,0.002,s,9,0.002,0.002",
        "transfer,1,1048576,copy_bytes_per_s chunk_ns,0.002786432,s,9,0.002,0.003",
        "transfer,1,8388608,copy_bytes_per_s chunk_ns,0.1,s,9,0.1,0.1",  # in chunks, side by side
        "connect,1,0,connect_ns,0.0015,s,9,0.001,0.002",
        "get_of_replies,1000,0,per_value_get_ns,2e-6,s,9,1e-6,3e-6",
        "call_with_returns,1,0,per_return_ns,0.0006,s,9,0.0006,0.0006",
        "call_with_returns,101,0,per_return_ns,0.0016,s,9,0.0016,0.0016",
        "export_function,1,0,export_function_ns,0.0004,s,9,0.0003,0.0005",
        "import_function,1,0,import_function_ns,0.0005,s,9,0.0004,0.0006",
        "async_actor_calls_async,1000,0,execute_async_ns,0.00023,s,9,0.0002,0.0003",
        "work_executor_async_actor_burst,300,0,execute_ns,0.00015,s,5,0.0001,0.0002",
    ]
    head = f"op,count,bytes,informs,{VALUES}"
    (tmp_path / "ray_core.csv").write_text("\n".join([head, *table, ""]))
    found = direct_constants(tmp_path)
    assert {name: c.value for name, c in found.items()} == pytest.approx({
        "wait_ns": 50_000, "per_ref_wait_ns": 500.5, "worker_start_sigma": 0.158,
        "spill_bytes_per_s": 9e8, "spill_again_bytes_per_s": 2e9,
        "copy_bytes_per_s": 2 / (0.57 * 1e-9),
        "restore_bytes_per_s": 14 * 2**20 / 1.75e-3, "restore_ns": 1_000_000,
        "execute_async_wait_ns": 80_000, "connect_ns": 1_200_000, "per_value_get_ns": 2_000,
        "per_return_ns": 10_000, "export_function_ns": 400_000, "import_function_ns": 200_000,
    }, rel=1e-2)  # fmt: skip
    assert found["per_ref_wait_ns"].rows == ("wait x 1", "wait x 1000")
    (wait,) = parameters(["wait_ns"], "ray", found)
    assert (wait.prior, wait.source) == (50_000, "wait for one, ray_core.csv: wait")
    assert wait.sigma < parameters(["wait_ns"])[0].sigma
