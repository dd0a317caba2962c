"""What TAB offers, asked as a shell asks; and once in a real bash."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from raysim.cli import complete, main
from raysim.cli.measure import WHAT
from raysim.cli.show import TABLES
from raysim.raystate.listings import BASE

ROOT = Path(__file__).resolve().parents[2]
MOST_CPU_S = 0.4


@pytest.fixture
def place(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scenarios, files of others and a run."""
    for folder in ("scenarios/first", "scenarios/fifth", "docs"):
        Path(folder).mkdir(parents=True)
    for folder in ("first", "fifth"):
        Path("scenarios", folder, "scenario.yaml").touch()
    Path("scenarios/first/config.json").touch()
    Path("program.py").touch()
    Path("notes.txt").touch()
    Path("runs/first-abc123").mkdir(parents=True)
    Path("runs/first-abc123/summary.json").write_text("{}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_tmp / "cache"))
    return in_tmp


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(place / "cache")}


def offered(place: Path, line: str) -> list[str]:
    """Answers of a process to ``line``, without what they mean."""
    asked = {
        "_RAYSIM_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": line,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "raysim"], check=True, capture_output=True, text=True, cwd=place,
        env=environment(place) | asked,
    )  # fmt: skip
    assert done.stderr == ""
    return [answer.partition("\t")[0] for answer in done.stdout.splitlines() if answer]


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("raysim pl", ["plan"]),
        ("raysim run --see", ["--seed"]),
        ("raysim run s", ["scenarios/"]),
        ("raysim run scenarios/fi", ["scenarios/fifth", "scenarios/first"]),
        ("raysim run p", ["program.py"]),
        ("raysim plan scenarios/first --maximize tokens_per_s_", ["tokens_per_s_per_gpu"]),
        ("raysim plan x --subject-to 'mfu >= 1' --minimize us", ["usd", "usd_per_million_tokens"]),
        ("raysim run x --set train.micro", ["train.micro_batch="]),
        ("raysim run x --set train.precision=b", ["train.precision=bf16"]),
        ("raysim plan x --vary train.precision=bf16,fp3", ["train.precision=bf16,fp32"]),
        ("raysim check --explain clust", ["cluster."]),
        ("raysim show ", ["runs/first-abc123"]),
        ("raysim compare ab", ["abc123"]),
        ("raysim show --table in", ["inputs"]),
        ("raysim catalog no", ["nodes"]),
        ("raysim catalog gpus V100-SXM", ["V100-SXM2-16GB", "V100-SXM2-32GB"]),
        ("raysim memory scenarios/first/", ["scenarios/first/config.json"]),
        ("raysim memory x --node p5", ["p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"]),
        ("raysim measure co", ["collectives"]),
        ("raysim completion z", ["zsh"]),
        ("raysim run x --trace-format ch", ["chrome"]),
    ],
)
def test_what_tab_offers(line: str, answers: list[str], place: Path) -> None:
    assert [a for a in offered(place, line) if a in answers] == answers


def test_nothing_else_is_offered(place: Path) -> None:
    assert offered(place, "raysim run scenarios/f") == ["scenarios/fifth", "scenarios/first"]
    assert offered(place, "raysim run n") == []
    assert offered(place, "raysim catalog models nothing") == []


def test_every_verb_is_offered_and_what_it_does(
    place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_RAYSIM_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "raysim ")
    assert main([]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert "compare\tPrint what differs between runs, most first." in lines
    assert {"run", "plan", "completion"} <= {line.partition("\t")[0] for line in lines}


def test_an_answer_is_quick(place: Path) -> None:
    """In CPU time: also of keys, once their schema has been read; the least of three."""
    offered(place, "raysim run x --set train.m")
    for line in ("raysim ", "raysim run scen", "raysim run x --set train.m"):
        took = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            offered(place, line)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert min(took) < MOST_CPU_S, line


def test_keys_are_kept_until_the_schema_changes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "train.seq_len" in complete.keys("train.seq")
    cache = place / "cache" / "raysim" / "keys.json"
    monkeypatch.setattr(complete, "_keys_of_schema", lambda: {"train.other": []})
    assert "train.seq_len" in complete.keys("train.seq")
    cache.write_text(cache.read_text().replace('"stamp": "', '"stamp": "older'))
    assert complete.keys("train.") == ["train.other"]
    cache.write_text("[")
    assert complete.keys("train.") == ["train.other"]
    shutil.rmtree(cache.parent.parent)
    cache.parent.parent.touch()  # where nothing can be written
    assert complete.keys("train.") == ["train.other"]


def test_names_of_elsewhere_are_those_offered() -> None:
    assert set(complete.MEASURABLE) == set(WHAT)
    assert set(complete.TABLES) == set(TABLES) | set(BASE)


def test_every_shell_has_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in complete.Shell:
        assert main(["completion", shell.value]) == 0
        assert "_RAYSIM_COMPLETE" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("line", "replies", "glued"),
    [
        ("raysim run scenarios/fir", ["scenarios/first"], False),
        ("raysim run x --set train.micro", ["train.micro_batch="], True),
        ("raysim run x --set train.precision=bf", ["bf16"], False),
        ("raysim pl", ["plan"], False),
    ],
)
def test_a_real_bash(line: str, replies: list[str], glued: bool, place: Path) -> None:
    """The function that TAB calls, with what bash gives it; ``compopt`` says what follows."""
    command = place / "raysim"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m raysim "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    asks = (
        "source <(raysim completion bash); complete -p raysim; compopt() { echo option $2; }; "
        f"COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}; _raysim_completion raysim; "
        'printf "reply %s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-ic", asks], check=True, capture_output=True, text=True, cwd=place,
        env=environment(place) | {"PATH": f"{place}:{os.environ['PATH']}"},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert "-F _raysim_completion raysim" in lines[0]
    assert [x.removeprefix("reply ") for x in lines if x.startswith("reply ")] == replies
    assert ("option nospace" in lines) == glued
