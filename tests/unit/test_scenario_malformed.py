"""More than 250 wrong inputs, each answered by one-line problems that say where and what."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from raysim.errors import ScenarioError
from raysim.scenario.build import build_job
from raysim.scenario.load import load

FOLDER = Path(__file__).parents[1] / "data" / "malformed"
BASE = FOLDER / "base"
RAY_UP_SCENARIO = (
    ("  hardware:\n    gpu-worker: {node: hgx-h100-8, nics: 8x400Gb/s}\n", ""),
    ("    head: {node: cpu-32}\n", ""),
    ("  prices: {gpu-worker: 23.92 usd/h}\n", ""),
    ("from: cluster.yaml", "from: ray-up.yaml"),
)
"""Edits that make the base scenario point at the `ray up` file, which names instance types."""


def edits() -> Iterator[tuple[str, str, str, list[str]]]:
    """File, old text, new text and expected problems of every case."""
    file, case = "", None
    for line in (FOLDER / "edits.txt").read_text().splitlines():
        if line.startswith("==="):
            file = line[4:]
        elif line.startswith("    ") and case is not None:
            case[3].append(line.strip())
        elif line and not line.startswith("#"):
            if case is not None:
                yield case
            old, new = (ast.literal_eval(part) for part in line.split(" -> "))
            case = (file, old, new, [])
    assert case is not None
    yield case


CASES = list(edits())


def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ray_up: bool = False) -> None:
    """The base scenario in the working folder."""
    shutil.copytree(BASE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    if ray_up:
        for old, new in RAY_UP_SCENARIO:
            edit("scenario.yaml", old, new)


def edit(file: str, old: str, new: str) -> None:
    text = Path(file).read_text()
    assert old in text, (file, old)
    Path(file).write_text(text.replace(old, new, 1))


def problems() -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        build_job(load("scenario.yaml"))
    for problem in caught.value.problems:
        assert problem.where is not None
        assert "\n" not in str(problem)
    return [str(problem) for problem in caught.value.problems]


def test_base_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied(tmp_path, monkeypatch)
    assert build_job(load(".")).steps == 10
    copied(tmp_path, monkeypatch, ray_up=True)
    scenario = load("scenario.yaml")
    assert [(g.name, g.count, g.node.name) for g in scenario.cluster.groups] == [
        ("head", 1, "m5.8xlarge"),
        ("gpu", 2, "p5.48xlarge"),
    ]


def test_there_are_more_than_two_hundred_cases() -> None:
    assert len(CASES) + len(WHOLE_FILES) >= 250
    assert len({case[:3] for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"), CASES, ids=[f"{c[0]}: {c[2][:40]!r}" for c in CASES]
)
def test_damaged_line(
    file: str,
    old: str,
    new: str,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied(tmp_path, monkeypatch, ray_up=file == "ray-up.yaml")
    edit(file, old, new)
    found = [line.replace("ray-up.yaml", "cluster.yaml") for line in problems()]
    assert len(found) == len(expected), found
    for line, wanted in zip(found, expected, strict=True):
        if wanted.endswith("..."):
            assert line.startswith(wanted[:-3].rstrip())
        else:
            assert line == wanted


def yaml_bomb() -> bytes:
    """Nine levels of nine aliases: 387 million values."""
    names = "abcdefghi"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for last, name in pairwise(names):
        lines.append(f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]")
    return "\n".join(lines).encode()


WHOLE_FILES: list[tuple[str, bytes | None, str]] = [
    ("scenario.yaml", b"", "scenario.yaml:1:1   expected one YAML document, found 0"),
    ("scenario.yaml", b"\n# only a comment\n", "expected one YAML document, found 0"),
    ("scenario.yaml", b"- a\n- b\n", "expected a mapping with cluster, model and jobs"),
    ("scenario.yaml", b"just text", "scenario.yaml:1:1   expected a mapping"),
    ("scenario.yaml", b"42", "scenario.yaml:1:1   expected a mapping"),
    ("scenario.yaml", b"{}", "scenario.yaml:1:1   cluster is required"),
    ("scenario.yaml", b"\x7fELF\x02\x01\x01\0\0\0", "is a binary file (a zero byte at offset 7)"),
    ("scenario.yaml", b"name: caf\xe9\n", "scenario.yaml:1:10   is not UTF-8 text: byte 0xe9"),
    ("scenario.yaml", "name: x\n".encode("utf-16"), "is a binary file"),
    ("scenario.yaml", yaml_bomb(), "expands to more than 20,000 values"),
    ("scenario.yaml", b"[" * 100_000, "nested deeper than 64"),
    ("scenario.yaml", b"- " * 5_000, "nested deeper than 64"),
    ("scenario.yaml", b"a: {" * 200 + b"}" * 200, "nested deeper than 64"),
    ("scenario.yaml", b"#" * 300_000, "is larger than 262,144 bytes"),
    ("scenario.yaml", b"a: \x01\n", "not YAML: unacceptable character"),
    ("scenario.yaml", b"a: b: c\n", "scenario.yaml:1:5   not YAML: mapping values"),
    ("scenario.yaml", b"a: [1, 2\n", "not YAML: expected ','"),
    ("scenario.yaml", b'a: "open\n', "not YAML: found unexpected end of stream"),
    ("scenario.yaml", b"%YAML 3.0\n---\na: 1\n", "not YAML: found incompatible YAML document"),
    ("scenario.yaml", b"a: *a\n", "found undefined alias 'a'"),
    ("scenario.yaml", None, "scenario.yaml   no such file"),
    ("ds_config.json", b'{"bf16": {"enabled": True}}', "1:22   not JSON: True is Python"),
    ("ds_config.json", b'{"a": [1e3.5]}', "1:8   not JSON: 1e3.5 is neither a number nor in quo"),
    ("ds_config.json", b"", "ds_config.json:1:1   is empty"),
    ("ds_config.json", b"[]", "ds_config.json:1:1   expected a mapping of DeepSpeed's keys"),
    ("ds_config.json", b"{", "ds_config.json:1:2   not JSON"),
    ("ds_config.json", b"{}{}", "ds_config.json:1:3   not JSON: extra text after the end"),
    ("ds_config.json", b"/*", "ds_config.json:1:1   not JSON: ends too early"),
    ("ds_config.json", b"'''", "not JSON"),
    ("ds_config.json", b'{"a": \xff}', "ds_config.json:1:7   is not UTF-8 text: byte 0xff"),
    ("ds_config.json", b"\0\0\0", "train.deepspeed: ds_config.json: is a binary file"),
    ("ds_config.json", b'{"a":' * 5_000, "not JSON: nested deeper than 64"),
    ("ds_config.json", b"[" * 100_000, "not JSON: nested deeper than 64"),
    ("ds_config.json", b'{"train_batch_size": ' + b"9" * 5_000 + b"}", "not JSON"),
    ("ds_config.json", None, "scenario.yaml:16:18   train.deepspeed: ds_config.json: no such file"),
    ("cluster.yaml", b"", "cluster.yaml:1:1   is empty"),
    ("cluster.yaml", yaml_bomb(), "cluster.yaml:"),
    ("cluster.yaml", b"kind: Deployment\n", "neither a `ray up` cluster file"),
    ("cluster.yaml", b"[1, 2]", "neither a `ray up` cluster file"),
    ("cluster.yaml", None, "scenario.yaml:5:9   cluster.from: cluster.yaml: no such file"),
    ("config.json", b"", "config.json:1:1   broken JSON: Expecting value"),
    ("config.json", b"[]", "expected a JSON object"),
    ("config.json", b"{", "config.json:1:2   broken JSON"),
    ("config.json", b"{}", "config.json:1:1   model_type: missing"),
    ("config.json", b"\xfe\xff", "config.json:1:1   is not UTF-8 text"),
    ("config.json", b"[" * 100_000, "broken JSON"),
    ("config.json", b" " * (5 * 2**20), "is larger than 4,194,304 bytes"),
    ("config.json", None, "scenario.yaml:12:9   model.from: config.json: no such file"),
]


@pytest.mark.parametrize(
    ("file", "content", "expected"), WHOLE_FILES, ids=[f"{f}: {e[:50]}" for f, _, e in WHOLE_FILES]
)
def test_whole_file(
    file: str,
    content: bytes | None,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied(tmp_path, monkeypatch)
    if content is None:
        Path(file).unlink()
    else:
        Path(file).write_bytes(content)
    found = problems()
    assert any(expected in line for line in found), found


@pytest.mark.parametrize("file", ["cluster.yaml", "config.json", "ds_config.json"])
def test_a_folder_where_a_file_should_be(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(tmp_path, monkeypatch)
    Path(file).unlink()
    Path(file).mkdir()
    (line,) = problems()
    assert f"{file}: is a folder; a file is needed here" in line
    assert line.startswith("scenario.yaml:")


@pytest.mark.parametrize("path", ["nowhere", "\0", "x" * 5_000, "", "cluster.yaml/scenario.yaml"])
def test_a_path_that_is_no_scenario(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(tmp_path, monkeypatch)
    Path("scenario.yaml").unlink()
    with pytest.raises(ScenarioError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
