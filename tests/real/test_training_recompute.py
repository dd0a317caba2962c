"""Products that torch's checkpoints run again, beside what raysim prices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raysim.hardware import catalog
from raysim.models.huggingface import build
from raysim.perf.compute import ComputeModel
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.parallel import Mesh
from raysim.training.stages import build_stages

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.real
WIDTHS = {"wq": (64, 64), "wk": (64, 16), "wv": (64, 16), "wo": (64, 64), "w1": (64, 192),
          "w3": (64, 192), "w2": (192, 64)}  # fmt: skip


def block(x: Any, w: dict[str, Any]) -> Any:
    """Llama's products around an attention core of four heads."""
    q, k, v = (x @ w[n] for n in ("wq", "wk", "wv"))
    heads = [t.view(2, 32, -1, 16).transpose(1, 2) for t in (q, k, v)]
    heads[1:] = [t.repeat_interleave(4, 1) for t in heads[1:]]
    core = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    x = x + core.transpose(1, 2).reshape(2, 32, 64) @ w["wo"]
    return x + (torch.nn.functional.silu(x @ w["w1"]) * (x @ w["w3"])) @ w["w2"]


def every_second(context: Any, func: Any, *_: Any, **__: Any) -> Any:
    """torchtitan's policy as far as products go."""
    from torch.utils.checkpoint import CheckpointPolicy

    if func != torch.ops.aten.mm.default:
        return CheckpointPolicy.PREFER_RECOMPUTE
    counts = every_second.counts  # type: ignore[attr-defined]
    counts[context.is_recompute] += 1
    odd = counts[context.is_recompute] % 2
    return CheckpointPolicy.MUST_SAVE if odd else CheckpointPolicy.PREFER_RECOMPUTE


def products_again(checkpoint: Callable[..., Any]) -> int:
    """Products of a backward that are no gradients."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        ran = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.ran += func == torch.ops.aten.mm.default
            return func(*args, **(kwargs or {}))

    torch.manual_seed(0)
    w = {n: torch.randn(shape, requires_grad=True) for n, shape in WIDTHS.items()}
    out = checkpoint(torch.randn(2, 32, 64, requires_grad=True), w)
    with Count() as count:
        out.sum().backward()
    return count.ran - 2 * len(WIDTHS)


def predicted(kind: str) -> int:
    """Products of a block with time in their second run."""
    model = build(
        {"model_type": "llama", "hidden_size": 64, "intermediate_size": 192,
         "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 1,
         "vocab_size": 64}, seq_len=32, library="torchtitan",
    )  # fmt: skip
    plan = TrainingPlan(
        model=model, mesh=Mesh(dp=2), engine="fsdp", micro_batch=2, gradient_accumulation_steps=1,
        precision="bf16", optimizer=Optimizer(),
        activation_checkpointing=kind,  # type: ignore[arg-type]
    )  # fmt: skip
    units = build_stages(plan, ComputeModel(catalog.gpu("H100-SXM-80GB")))[0].units
    return sum(u.name.rpartition(".")[2] in WIDTHS and u.again.seconds > 0 for u in units)


def test_a_checkpoint_stops_before_the_last_product() -> None:
    from torch.utils.checkpoint import checkpoint

    real = products_again(lambda x, w: checkpoint(block, x, w, use_reentrant=False))
    assert real == predicted("full") == len(WIDTHS) - 1


def test_every_second_product_runs_again() -> None:
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    every_second.counts = {False: 0, True: 0}  # type: ignore[attr-defined]
    real = products_again(
        lambda x, w: checkpoint(
            block,
            x,
            w,
            use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(every_second),
        )
    )
    assert real == predicted("op") == 3
