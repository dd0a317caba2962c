"""Tables of published data sets, and what is made of their rows."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import pytest

from raysim.rayapi.standins import hub, pipelines, text
from raysim.rayapi.standins.absent import datasets
from raysim.rayapi.standins.absent.rows import Dataset
from raysim.rayapi.standins.columns import bank_rows
from raysim.rayapi.standins.published import Column, Table, pictures, tables


def _glue() -> Table:
    return next(t for t in tables()["glue"] if t.config == "mrpc")


def test_published_rows_are_read() -> None:
    """MRPC: 3,668 pairs to train with; CIFAR-100: 60,000 pictures of 32 x 32 in 100 classes."""
    assert _glue().splits == {"train": 3668, "validation": 408, "test": 1725}
    cifar = pictures()["CIFAR100"]
    assert (sum(cifar.splits.values()), cifar.size, cifar.classes) == (60_000, (32, 32), 100)


def test_every_row_of_every_table_can_be_made() -> None:
    for found in tables().values():
        for table in found:
            few = hub.bank(table, 2)
            assert all(len(values) == 2 for values in few.values()), table.name


def test_slices_of_splits_have_their_rows() -> None:
    assert hub.asked_splits(_glue(), "train[:25%]") == {"train[:25%]": 917}
    assert hub.asked_splits(_glue(), "train[100:]+test") == {"train[100:]+test": 3568 + 1725}
    with pytest.raises(ValueError, match="Unknown split 'valid'"):
        hub.asked_splits(_glue(), "valid")


def test_texts_have_the_mean_that_is_published() -> None:
    lengths = [len(text.text(500, place)) for place in range(80)]
    assert mean(lengths) == pytest.approx(500, rel=0.01)
    assert len(set(lengths)) == text.LENGTHS


def test_long_texts_have_fewer_rows_that_stand_for_all() -> None:
    def of(characters: float) -> Table:
        return Table("x", "", {"train": 10**6}, (Column("text", "text", (characters,)),), "")

    assert bank_rows(of(50), 10**6) == 1000
    assert bank_rows(of(4000), 10**6) == 100
    assert bank_rows(of(4000), 7) == 7


def test_answers_of_a_preference_share_their_question() -> None:
    (table,) = tables()["trl-lib/ultrafeedback_binarized"]
    made = hub.bank(table, 60)
    for chosen, rejected in zip(made["chosen"], made["rejected"], strict=True):
        assert chosen[0] == rejected[0]
        assert chosen[1] != rejected[1]


def test_files_of_the_hub_name_their_data_set() -> None:
    files = {"train": "hf://datasets/nyu-mll/glue@refs/convert/parquet/cola/train/0000.parquet"}
    assert hub.of_hub(files) == ("nyu-mll/glue", "cola")
    assert hub.of_hub({"train": "data/train.json"}) is None


def test_columns_of_columns_are_flattened() -> None:
    """As scripts of ELI5 and SQuAD ask: ``answers.text``."""
    rows = Dataset.from_dict({"id": ["a"], "answers": [{"text": ["x"], "answer_start": [0]}]})
    assert rows.flatten().bank == {
        "id": ["a"], "answers.text": [["x"]], "answers.answer_start": [[0]],
    }  # fmt: skip


def test_all_rows_at_once_are_given_to_a_function_that_asks_so() -> None:
    data = datasets.Dataset.from_dict({"text": ["a", "bb", "ccc"]})
    for whole in (-1, None):
        made = data.map(
            lambda rows: {"n": [len(rows["text"])]},
            batched=True, batch_size=whole, remove_columns=["text"],
        )  # fmt: skip
        assert made["n"] == [3]


def test_types_of_columns_are_found_where_scripts_look_for_them() -> None:
    assert datasets.features.Audio is datasets.Audio


def test_a_pipeline_s_folder_has_what_diffusers_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``from_pretrained(name, subfolder=...)`` and pipelines look for it."""
    monkeypatch.setattr(pipelines, "program_here", object)
    monkeypatch.setattr(pipelines, "say", lambda _: None)
    monkeypatch.setattr(pipelines, "_is_here", lambda _: False)
    assert pipelines.stands_for("someone/unknown") == "someone/unknown"
    folder = Path(pipelines.stands_for("stabilityai/stable-diffusion-xl-base-1.0"))
    index = json.loads((folder / "model_index.json").read_text())
    assert index["text_encoder_2"] == ["transformers", "CLIPTextModelWithProjection"]
    assert index["tokenizer"] == ["transformers", "CLIPTokenizer"]
    assert (folder / "scheduler" / "scheduler_config.json").exists()
    said = json.loads((folder / "tokenizer_2" / "config.json").read_text())
    assert (said["model_type"], said["hidden_size"]) == ("clip_text_model", 1280)
    assert pipelines.named(folder / "unet") == "stable-diffusion-xl-base-1.0/unet"
    alone = Path(pipelines.stands_for("stabilityai/sd-vae-ft-ema"))
    assert json.loads((alone / "config.json").read_text())["_class_name"] == "AutoencoderKL"
