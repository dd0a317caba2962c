"""What programs call models, and how texts become tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from raysim.rayapi.llm.engine import ANSWER_TOKENS, Sampling
from raysim.rayapi.llm.known import HUB, config_of, longest_of
from raysim.rayapi.llm.texts import chat_tokens, counter, said, said_of
from raysim.serving.decoder import read_decoder
from raysim.validate.serving import MODELS

CONFIGS = Path(__file__).parents[2] / "data" / "hf_configs"
PUBLISHED = {
    "llama-2-7b": 6.74, "llama-2-13b": 13.0, "llama-2-70b": 69.0, "llama-3-8b": 8.03,
    "llama-3-70b": 70.6, "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.6, "llama-3.2-1b": 1.24,
    "llama-3.2-3b": 3.21, "llama-3.3-70b": 70.6, "tinyllama-1.1b": 1.10, "mistral-7b": 7.25,
    "mixtral-8x7b": 46.7, "qwen2.5-0.5b": 0.494, "qwen2.5-1.5b": 1.54, "qwen2.5-3b": 3.09,
    "qwen2.5-7b": 7.62, "qwen2.5-14b": 14.8, "qwen2.5-32b": 32.8, "qwen2.5-72b": 72.7,
    "qwen3-0.6b": 0.596, "qwen3-1.7b": 1.72, "qwen3-4b": 4.02, "qwen3-8b": 8.19,
    "qwen3-14b": 14.8, "qwen3-32b": 32.8, "gpt-oss-20b": 20.9, "gpt-oss-120b": 116.8,
    "deepseek-v3": 671.0, "qwen3-30b-a3b": 30.5, "llama-3.1-405b": 405.9, "qwen2-7b": 7.62,
}  # fmt: skip
"""Billions of parameters, as the hub's pages show them."""


def test_models_of_the_hub_have_the_parameters_that_it_shows() -> None:
    assert HUB.keys() == PUBLISHED.keys()
    for name, billions in PUBLISHED.items():
        assert read_decoder(HUB[name]).parameters / 1e9 == pytest.approx(billions, rel=6e-3), name


@pytest.mark.parametrize("file", sorted(HUB.keys() & {f.stem for f in CONFIGS.iterdir()}))
def test_they_are_what_the_hubs_files_say(file: str) -> None:
    said_ = read_decoder(json.loads((CONFIGS / f"{file}.json").read_text()))
    if file == "mistral-7b":  # the file is of its first version, the table of its third
        said_ = replace(said_, vocabulary=32_768)
    assert replace(read_decoder(HUB[file]), name="") == replace(said_, name="")


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_mixtures_are_those_that_published_runs_served(name: str) -> None:
    assert replace(read_decoder(HUB[name]), name="") == replace(read_decoder(MODELS[name]), name="")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("unsloth/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5b"),
        ("Qwen/Qwen3-0.6B", "qwen3-0.6b"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"),
        ("Qwen/QwQ-32B", "qwen2.5-32b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
    ],
)
def test_a_model_is_found_by_what_programs_call_it(source: str, name: str) -> None:
    assert config_of(source) is HUB[name]


def test_a_quantised_model_has_smaller_weights() -> None:
    whole = read_decoder(config_of("Qwen/Qwen3-4B-Instruct-2507"))
    half = read_decoder(config_of("Qwen/Qwen3-4B-Instruct-2507-FP8"))
    assert half.parameters == whole.parameters
    assert 0.5 < half.total_bytes / whole.total_bytes < 0.65  # embeddings stay
    assert read_decoder(config_of("Qwen/Qwen2.5-7B-Instruct-AWQ")).total_bytes < 6e9


def test_a_folder_and_the_hubs_cache_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = dict(HUB["qwen3-0.6b"], max_position_embeddings=123)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(own))
    assert longest_of(config_of(str(tmp_path / "mine"))) == 123
    cached = tmp_path / "hub" / "models--a--b" / "snapshots" / "1f2e"
    cached.mkdir(parents=True)
    (cached / "config.json").write_text(json.dumps(own))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert longest_of(config_of("a/b")) == 123
    with pytest.raises(ValueError, match=r"no config\.json of 'a/c'"):
        config_of("a/c")


def test_texts_are_counted_as_they_are_made() -> None:
    count = counter("no folder")
    assert [count(said(n)) for n in (1, 2, 7, 100)] == [1, 2, 7, 100]
    assert "".join(said_of(n, n + 1) for n in range(9)) == said(9)
    assert chat_tokens([{"role": "user", "content": "x" * 40}], count) == (10 + 4 + 4, 0)


def test_an_answer_is_as_long_as_a_chat_or_as_is_asked_for() -> None:
    room = 4000
    assert Sampling().output_tokens(room) == ANSWER_TOKENS
    assert Sampling(max_tokens=20).output_tokens(room) == 20
    assert Sampling(max_tokens=1000).output_tokens(room) == ANSWER_TOKENS
    assert Sampling(max_tokens=1000, ignore_eos=True).output_tokens(room) == 1000
    assert Sampling(max_tokens=1000, min_tokens=500).output_tokens(room) == 500
    assert Sampling(max_tokens=9000, ignore_eos=True).output_tokens(room) == room
