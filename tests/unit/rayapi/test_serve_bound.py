"""Scripts that bind an application and leave it to ``serve run``."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from raysim.cli import main
from tests.unit.program_cases import script

BOUND = """
import time
from ray import serve

@serve.deployment(num_replicas=2)
class Model:
    def __init__(self):
        time.sleep(30)

@serve.deployment({options})
class Front:
    def __init__(self, models):
        self.models = models

model = Model.bind()
{name} = Front.bind([model])
{more}
"""


@pytest.fixture(autouse=True)
def _a_hundred_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def played(
    capsys: pytest.CaptureFixture[str], name: str = "front", options: str = "", more: str = ""
) -> tuple[int, str]:
    """Exit code and verdict of such a script."""
    script(Path(), BOUND.format(name=name, options=options, more=more))
    code = main(["run", "main.py", "--compute", "declared", "-q"])
    said = capsys.readouterr()
    return code, " ".join((said.out + said.err).split())


def test_what_a_script_binds_last_is_deployed(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its constructor takes 30 s, and the model is part of it."""
    code, said = played(capsys)
    assert code == 0
    assert "`serve run main:front` until it runs (32" in said
    assert "replicas: 3)" in said


def test_of_several_the_one_called_app_is(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = played(capsys, name="app", more="other = Front.options(name='Other').bind([])")
    assert code == 0
    assert "`serve run main:app`" in said


@pytest.mark.parametrize("more", ["serve.run(front)", "ray.get(ray.remote(lambda: 1).remote())"])
def test_a_script_that_does_something_itself_is_left_alone(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], more: str
) -> None:
    code, said = played(capsys, more=f"import ray\n{more}")
    assert code == 0
    assert "serve run" not in said


def test_a_replica_without_room_says_what_no_node_has(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began_s = time.perf_counter()
    code, said = played(capsys, options='ray_actor_options={"num_gpus": 1}')
    assert code == 1
    assert "asks for 1 GPU" in said or "asks for 1 CPU and 1 GPU" in said
    assert "no node has any GPU: say machines that have it" in said
    assert "until it runs" not in said
    assert time.perf_counter() - began_s < 60


def test_a_replica_larger_than_any_node_says_so(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = played(capsys, options='ray_actor_options={"num_cpus": 500}')
    assert code == 1
    assert "asks for 500 CPU on one node, more than any has" in said
