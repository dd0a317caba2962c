"""Profile files: what they say, what is refused, and what changes in a run that names one."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.cli import main
from raysim.errors import ScenarioError
from raysim.perf.profile import DATASHEET, Constant, Profile, bounds_of, known, unit_of
from raysim.perf.ray_core import RayCosts
from raysim.report import console
from raysim.results.result import yaml_text
from raysim.scenario.build import build_job
from raysim.scenario.profile import load_profile, profile_data, profile_of
from raysim.scenario.script import script_scenario
from raysim.scenario.yaml_text import parse_yaml_all

FILE = """\
profile: two-cores
made: 2026-11-22
source: a small machine
ray:
  get_ns: 51000
  put_ns:
    {value: 90000.4, unit: ns, bounds: [1e4, 1e6], error: 0.1, rows: [a/put], source: fitted}
training:
  launch_s: 2e-6
  sustained_share: 0.5
  allocator_slack_frac: 0.5
  context_bytes: {value: 500000000, rows: [gpu.csv context], source: measured alone}
"""
PROGRAM = "import ray\nray.init()\nfor _ in range(5):\n    ray.put(b'x')\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "profile.yaml"
    path.write_text(FILE)
    return path


def test_a_file_says_constants_by_section(file: Path) -> None:
    profile = load_profile(file)
    assert profile.ray_costs() == replace(RayCosts(), get_ns=51_000, put_ns=90_000)
    assert profile.ray["get_ns"].prior == RayCosts().get_ns
    assert (profile.ray["put_ns"].lower, profile.ray["put_ns"].upper) == (1e4, 1e6)
    constants = profile.training_constants()
    assert (constants.launch_s, constants.sustained_share) == (2e-6, 0.5)
    assert constants.hook_s == known("training")["hook_s"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ray: {get_nss: 3}", "ray.get_nss: unknown constant 'get_nss'; did you mean 'get_ns'?"),
        ("ray: {launch_s: 3}", "unknown constant 'launch_s'; it belongs to 'training'"),
        ("ray: {get_ns: -3}", "ray.get_ns: must be more than 0"),
        ("ray: {get_ns: fast}", "ray.get_ns: expected a mapping, got 'fast'"),
        ("ray: {get_ns: {value: 3, unit: us}}", "ray.get_ns.unit: get_ns is in ns, not in us"),
        ("ray: {get_ns: {value: 3, bounds: [5, 9]}}", "3 is outside of its bounds 5 to 9"),
        ("ray: {get_ns: {value: 3, bounds: [9, 5]}}", "expected [lower, upper] with 0 <= lower"),
        ("training: {memory_share: 1.5}", "1.5 is outside of its bounds 0 to 1"),
        ("training: {memory_share: {value: 0.5, bounds: [0.1, 2]}}", "the upper at most 1"),
        ("rays: {}", "unknown key 'rays'; did you mean 'ray'?"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(f"profile: mine\n{line}\n")
    with pytest.raises(ScenarioError) as caught:
        load_profile(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}:2:")


def test_every_wrong_constant_is_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("profile: mine\nray: {x: 1, y: 2}\ntraining: {z: 3}\n")
    with pytest.raises(ScenarioError) as caught:
        load_profile(path)
    assert len(caught.value.problems) == 3


def test_a_text_is_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("get_ns\n")
    with pytest.raises(ScenarioError, match="expected a mapping: profile, ray, training"):
        load_profile(path)


NUMBERS = st.floats(1e-6, 1.0, exclude_min=True)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    sections: dict[str, Any] = {"ray": {}, "training": {}}
    for section, constants in sections.items():
        for name in draw(st.sets(st.sampled_from(sorted(known(section))), max_size=4)):
            value = draw(NUMBERS)
            lower, upper = draw(st.sampled_from([bounds_of(name, None), (value / 2, value)]))
            constants[name] = Constant(
                value=value, unit=unit_of(name), lower=lower, upper=upper,
                prior=draw(st.sampled_from([known(section)[name], 0.25])),
                error=draw(st.none() | st.just(0.125)), source=draw(st.sampled_from(["", "a: b"])),
                rows=draw(st.sampled_from([(), ("w/a", "w/b")])),
            )  # fmt: skip
    return Profile(name="p", made="2026-11-22", source="x", **sections)


@given(profiles())
def test_written_and_read_again_is_the_same(profile: Profile) -> None:
    text = yaml_text(profile_data(profile), flowing_lists=True)
    (document,) = parse_yaml_all(text, "profile.yaml")
    assert profile_of(document) == profile


def test_every_constant_has_a_unit_and_a_place() -> None:
    assert {unit_of(f.name) for f in fields(RayCosts)} == {"ns", "s", "bytes", "bytes/s", "1"}
    assert unit_of("submitters_frac") == unit_of("worker_start_sigma") == "1"
    assert set(DATASHEET) < set(known("training"))


# ---- runs ----------------------------------------------------------------------------------------


def trusted(result: raysim.Result, name: str) -> dict[str, Any]:
    (found,) = (item for item in result.summary["trust"]["inputs"] if item["name"] == name)
    return found


def test_a_program_runs_on_the_profiles_service_times(tmp_path: Path, file: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(PROGRAM)
    plain = script_scenario(script, compute="declared")
    scenario = script_scenario(script, compute="declared", profile=file)
    assert scenario.job.costs.put_ns == 90_000
    result = raysim.run(scenario, record=False)
    assert result.summary["run_id"] != raysim.run(plain, record=False).summary["run_id"]
    assert trusted(result, "Ray put_ns") == {
        "name": "Ray put_ns", "value": 90000.4, "basis": "measured",
        "source": "profile two-cores: fitted",
    }  # fmt: skip
    assert trusted(result, "Ray get_ns")["basis"] == "assumed"
    assert result.summary["trust"]["profile"]["name"] == "two-cores"
    assert "2 constants from profile two-cores of 2026-11-22" in " ".join(str(result).split())
    again = raysim.run(plain.with_({"profile": scenario.resolved()["profile"]}), record=False)
    assert again.summary["run"] == result.summary["run"]


def test_calls_are_drawn_as_long_as_the_profile_says_they_take(tmp_path: Path) -> None:
    script, file = tmp_path / "main.py", tmp_path / "profile.yaml"
    script.write_text("import ray\nray.init()\nray.get(ray.remote(lambda: 1).remote())\n")
    file.write_text(FILE.replace("get_ns: 51000", "submit_task_ns: 300000"))
    result = raysim.run(script_scenario(script, compute="declared", profile=file))
    assert result.program is not None
    drawn = [s for s in result.program.trace().spans() if s.category == "submit_task"]
    assert [s.end_ns - s.start_ns for s in drawn] == [300_000]
    assert result.plot.activity.submitting_ns == 300_000
    result.program.write(tmp_path)
    events = json.loads((tmp_path / "timeline.json").read_text())
    assert [e["dur"] for e in events if e["cat"] == "submit_task"] == [300.0]


def test_a_training_job_runs_on_the_profiles_constants(root: Path, file: Path) -> None:
    plain = raysim.load(root / "scenarios" / "llama3_8b_zero3")
    scenario = plain.with_({"profile": str(file)})
    constants = build_job(scenario).plan.constants
    assert (constants.launch_s, constants.allocator_slack_frac) == (2e-6, 0.5)
    before, result = raysim.run(plain, record=False), raysim.run(scenario, record=False)
    assert result.summary["step"]["seconds"] > 1.2 * before.summary["step"]["seconds"]
    assert result.summary["memory"] != before.summary["memory"]
    context = next(
        item for item in result.summary["trust"]["inputs"] if item["name"].endswith("context_bytes")
    )
    assert (context["value"], context["basis"]) == (500_000_000, "measured")
    assert context["source"] == "profile two-cores: measured alone"
    assert trusted(result, "launch_s")["source"] == "profile two-cores"
    assert result.summary["trust"]["past_error"] is None
    assert "constants from profile two-cores" in console.render(result.summary, width=500).plain
    resolved = scenario.resolved()
    assert resolved["profile"]["training"]["launch_s"] == 2e-6
    assert resolved["resolved"]["files"][str(file)] != ""


def test_a_profile_of_the_other_kind_is_said_to_change_nothing(tmp_path: Path) -> None:
    script, path = tmp_path / "main.py", tmp_path / "profile.yaml"
    script.write_text(PROGRAM)
    path.write_text("profile: gpu\ntraining: {launch_s: 1e-6}\n")
    scenario = script_scenario(script, compute="declared", profile=path)
    assert any("has nothing in section 'ray'" in str(w) for w in scenario.warnings)


def test_run_takes_a_profile_for_scripts_and_scenarios(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "main.py"
    script.write_text(PROGRAM)
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "scenario.yaml").write_text(
        "cluster: {nodes: 1, node: cpu-16}\n"
        "jobs: [{script: {path: ../main.py, compute: declared}}]\n"
    )
    for what in (script, folder):
        flags = ["--json", "--no-trace", "--profile", str(file), "-o", str(tmp_path / "out")]
        assert main(["run", str(what), *flags]) == 0
        assert json.loads(capsys.readouterr().out)["trust"]["profile"]["name"] == "two-cores"
    assert main(["run", str(script), "--profile", str(tmp_path / "none.yaml")]) == 2
    assert "no such file" in capsys.readouterr().err
