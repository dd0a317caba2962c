"""Steps of one device, on the CPU: cases share a process, one that fails is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]
torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

from raysim.errors import CalibrationError  # noqa: E402
from raysim.measure.session import Budget, Session  # noqa: E402
from raysim.measure.table import read_rows  # noqa: E402
from raysim.measure.training_device import operators  # noqa: E402
from raysim.measure.training_step import groups, measure  # noqa: E402

GPT: dict[str, Any] = {
    "model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 100,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


def case(name: str, **more: Any) -> dict[str, Any]:
    config = {"train_micro_batch_size_per_gpu": 2}
    plain = {"name": name, "engine": "single", "ranks": 1, "model": GPT, "seq": 16, "steps": 3}
    return plain | {"config": config} | more


def test_cases_of_one_model_share_a_start_and_deepspeed_s_do_not() -> None:
    given = [
        case("a"), case("b", fused=True), case("c", model=GPT | {"n_layer": 2}),
        case("d", engine="deepspeed"), case("e", engine="deepspeed"), case("f", ranks=2),
    ]  # fmt: skip
    named = [[c["name"] for c in group] for group in groups(given)]
    assert named == [["a", "b"], ["c"], ["d"], ["e"], ["f"]]
    assert list(groups([])) == []


@pytest.mark.filterwarnings("ignore")
def test_a_case_that_fails_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    file.write_text(json.dumps([case("wrong", attention="none"), case("right", autocast=True)]))
    session = Session(folder=tmp_path / "m", budget=Budget(100), command="", cases=file)
    measure(session)
    assert session.measured == 1
    assert [text.partition(":")[0] for text in session.left_out] == ["step wrong"]
    rows = read_rows(tmp_path / "m" / "training_steps_validation.csv")
    assert {row.parameters["case"] for row in rows} == {"right"}
    file.write_text(json.dumps([case("wrong", attention="none")]))
    with pytest.raises(CalibrationError, match="every case failed"):
        measure(Session(folder=tmp_path / "n", budget=Budget(100), command="", cases=file))


@pytest.mark.filterwarnings("ignore")
def test_operators_of_a_step_are_those_that_hold_the_device() -> None:
    layer = torch.nn.Linear(4, 4)
    found = operators(lambda: layer(torch.ones(2, 4)).sum().backward())
    assert found == [] or torch.cuda.is_available()  # a CPU's operators hold no device
