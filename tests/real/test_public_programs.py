"""What public training scripts do that once failed here, each the smallest that did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.modeling_utils")  # now, so that it has torch's own functions

from torch import nn  # noqa: E402

from tests.real.training_script_parts import fit_value  # noqa: E402


def test_flash_attention_is_given_no_mask() -> None:
    """Of tensor-parallel ranks whose embeddings are parts, a mask would have the parts' length."""

    def loop(_: Any) -> Any:
        config = transformers.LlamaConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, vocab_size=64,
        )  # fmt: skip
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="flash_attention_2"
        ).cuda()
        given: list[Any] = []
        model.model.layers[0].self_attn.register_forward_pre_hook(
            lambda _m, _a, kwargs: given.append(kwargs["attention_mask"].ndim), with_kwargs=True
        )
        ids = torch.zeros(1, 8, dtype=torch.long, device="cuda")
        model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()
        return model.config._attn_implementation, given

    assert fit_value(loop, workers=1) == ("flash_attention_2", [2])  # padding alone


def test_a_distributed_checkpoint_takes_what_has_a_state(tmp_path: Path) -> None:
    """``dcp.save({"model": model})``, as torch asks such objects for their ``state_dict``."""
    import torch.distributed.checkpoint as dcp

    def loop(_: Any) -> Any:
        import ray.train

        model = nn.Linear(64, 64, bias=False).cuda()
        model.hook = lambda: None  # which could not be pickled
        dcp.save({"model": model, "step": 3}, checkpoint_id=tmp_path)
        state = {"model": model, "step": 0}
        dcp.load(state, checkpoint_id=tmp_path)
        ray.train.report({})
        return state["model"] is model, state["step"]

    assert fit_value(loop, workers=2) == (True, 3)


def test_collectives_take_torch_s_names_and_give_futures() -> None:
    """As nanochat's optimizer calls them."""
    import torch.distributed as dist

    def loop(_: Any) -> Any:
        mine, whole = torch.zeros(4, device="cuda"), torch.zeros(8, device="cuda")
        work = dist.reduce_scatter_tensor(mine, whole, op=dist.ReduceOp.AVG, async_op=True)
        work.get_future().wait()
        dist.all_gather_into_tensor(output_tensor=whole, input_tensor=mine)
        dist.new_group(backend="gloo").monitored_barrier()  # Lightning's ``rank_zero_first``
        return tuple(whole.shape)

    assert fit_value(loop, workers=2) == (8,)
