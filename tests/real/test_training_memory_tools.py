"""Memory without devices: torch's ``MemTracker`` on fake tensors against raysim's ledger."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from raysim.measure.training_models import causal_lm  # noqa: E402
from raysim.training.program import Program  # noqa: E402
from raysim.validate.training_plans import plan_of  # noqa: E402
from tests.training_parts import programs  # noqa: E402

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
BATCH, SEQ = 4, 128


def tracked(config: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Bytes by MemTracker's categories at the peak, after backward and after the second step."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    def total(kind: str) -> dict[str, int]:
        (by_category,) = tracker.get_tracker_snapshot(kind).values()
        return {getattr(k, "name", k): v for k, v in by_category.items()}

    with FakeTensorMode():
        model = causal_lm(config)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        ids = torch.randint(config["vocab_size"], (BATCH, SEQ))
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        found = {}
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()  # else the second call of a module is refused
                model(input_ids=ids, labels=ids).loss.backward()
                found["backward"] = total("current")
                optimizer.step()
                optimizer.zero_grad()
            return found | {"end": total("current"), "peak": total("peak")}


def ledger(config: dict[str, Any]) -> tuple[Program, int]:
    """One rank's program, and the most bytes it holds."""
    batch = {"train_micro_batch_size_per_gpu": BATCH, "gradient_clipping": 0.0}
    case = {"name": "case", "engine": "ddp", "ranks": 1, "model": config, "seq": SEQ}
    (program,) = programs(plan_of(case | {"config": batch}), steps=2)
    held = most = 0
    for event in program.memory:
        held += event.delta_bytes
        most = max(most, held)
    return program, most


@pytest.mark.parametrize("name", MODELS)
def test_states_to_the_byte_and_the_peak_within_three_percent(name: str) -> None:
    real, (program, peak) = tracked(MODELS[name]), ledger(MODELS[name])
    parameters = sum(1 for _ in causal_lm(MODELS[name]).parameters())
    held = program.step_held[-1]
    assert held["parameter"] == real["end"]["PARAM"]
    assert held["optimizer_state"] == real["end"]["OPT"] - 4 * parameters  # the step counters
    gradients = sum(e.delta_bytes for e in program.memory if "zero_grad" in e.label)
    assert real["backward"]["GRAD"] == -gradients // 2  # two steps
    assert peak == pytest.approx(real["peak"]["Total"], rel=0.03)
