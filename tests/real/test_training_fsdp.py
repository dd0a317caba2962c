"""FSDP on real ranks every time: the record is what torch does, and so is raysim."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("torch")
pytest.importorskip("transformers")

from raysim.measure.training_step import run_cases  # noqa: E402
from raysim.rayapi.shapes.fsdp import _policy  # noqa: E402
from raysim.rayapi.shapes.left_out import cut_at, left_out  # noqa: E402
from raysim.rayapi.shapes.prediction import Prediction  # noqa: E402
from raysim.training.engines.fsdp import divisors  # noqa: E402
from tests.real.real_ranks import said_by  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402
from tests.real.test_training_collectives import free_port  # noqa: E402
from tests.unit.test_training_fsdp_steps import CASES  # noqa: E402

BLOCKS = {0: 5280, 1: 8448, 2: 16768, 3: 25088, 4: 33408}
"""Bytes of all parameters of each group of ``fsdp2_setters.py``, the root's first."""
REPLAYED = ("llama-fsdp2-mixed", "llama-fsdp1-forward-prefetch", "gpt2-tied-fsdp1-orig")


@pytest.mark.timeout(200)
def test_real_steps_do_what_the_record_says() -> None:
    asked = [c for c in CASES if c["ranks"] == 2 and c["name"] in REPLAYED]
    assert len(asked) == len(REPLAYED)
    found = run_cases(asked)
    for case in asked:
        for rank, record in enumerate(case["records"]):
            real = found[rank][case["name"]]
            assert {k: real[k] for k in record} == record, case["name"]


def test_gradients_are_divided_by_what_torch_divides_them_by() -> None:
    """FSDP1 for every type, FSDP2 for fp16; in the wider ones FSDP2 leaves it to NCCL."""
    torch = pytest.importorskip("torch")
    hooks = pytest.importorskip("torch.distributed.algorithms._comm_hooks.default_hooks")
    collectives = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_collectives")

    class Ranks:
        def __init__(self, count: int) -> None:
            self.count = count

        def size(self) -> int:
            return self.count

    for ranks in range(2, 600):
        before, after = divisors(ranks)
        assert before == hooks.DefaultState._get_gradient_predivide_factor(ranks)
        factors = collectives._get_gradient_divide_factors
        assert factors(Ranks(ranks), None, torch.float16)[:2] == (before, after)
        for wider in (torch.bfloat16, torch.float32):
            assert factors(Ranks(ranks), None, wider)[:2] == (None, None)


@pytest.mark.timeout(200)
def test_a_flat_parameter_of_frozen_and_trained_has_a_whole_gradient() -> None:
    """On two ranks: 4,608 elements of a block, of which 512 are trained; a shard once reduced."""
    script = Path(__file__).parents[1] / "programs" / "launched" / "fsdp1_adapters.py"
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    said = said_by([*launch, "--master-port", str(free_port()), str(script)])
    assert "without sync 4608, with sync 2304, states of 512" in said


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_policies_of_scripts_and_peft_s_own() -> None:
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    wrap = pytest.importorskip("torch.distributed.fsdp.wrap")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        vocab_size=64,
    )  # fmt: skip
    model = peft.get_peft_model(
        transformers.LlamaForCausalLM(config), peft.LoraConfig(target_modules=["q_proj"])
    )
    own = peft.utils.other.fsdp_auto_wrap_policy(model)
    assert _policy(own) == {"layer_classes": ("LlamaDecoderLayer",), "trained_apart": True}
    classes = functools.partial(
        wrap.transformer_auto_wrap_policy, transformer_layer_cls={torch.nn.Linear}
    )
    assert _policy(classes) == {"layer_classes": ("Linear",)}


@pytest.mark.parametrize(
    ("said", "micro_batches"),
    [  # as real ranks of torch 2.13 issue them: g gathers a group, r reduces it, s over replicas
        ("last stays", ["g0 g1 g2 g3 g4 g3 r4 g2 r3 g1 r2 r1 r0"] * 2),
        ("two ahead", ["g0 g1 g2 g3 g4 g4 g3 g2 r4 g1 r3 r2 r1 r0"] * 2),
        ("kept behind backward",
         ["g0 g1 g2 g3 g4 g4 g3 g2 g1", "g4 g3 r4 g2 r3 g1 r2 r1 r0"]),
        ("kept", ["g0 g1 g2 g3 g4", "r4 r3 r2 r1 r0"]),
        ("summed late",
         ["g0 g1 g2 g3 g4 g4 g3 r4 g2 r3 g1 r2 r1 r0",
          "g0 g1 g2 g3 g4 g4 g3 r4 s4 g2 r3 s3 g1 r2 s2 r1 s1 r0 s0"]),
    ],
)  # fmt: skip
def test_what_scripts_set_of_fsdp2_s_modules_is_what_torch_does(
    said: str, micro_batches: list[str], steps_taken: list[Prediction]
) -> None:
    ranks = "4" if said == "summed late" else "2"
    launched("torchrun", "--nproc-per-node", ranks, "fsdp2_setters.py", said)
    program = steps_taken[-1].outcome.slowest.program
    of_size = {size: group for group, size in BLOCKS.items()}
    of_size |= {size // 2: group for group, size in BLOCKS.items()}  # shards of two ranks
    words = {"all_gather": "g", "reduce_scatter": "r", "all_reduce": "s"}
    steady = (op.call for op in program.ops[program.step_ends[-2] :])
    issued = [f"{words[c.op]}{of_size[c.size_bytes]}" for c in steady if c is not None]
    assert issued == " ".join(micro_batches).split()


def test_what_fsdp_leaves_whole_or_cuts_otherwise_has_its_names() -> None:
    """An inner call's are the outer one's too; dimensions that do not divide end as in torch."""
    torch = pytest.importorskip("torch")
    from torch.distributed.tensor import Shard

    nn = torch.nn
    block = nn.Sequential(nn.Linear(4, 6, bias=False), nn.LayerNorm(6))
    net = nn.Sequential(block, nn.Linear(6, 2))
    assert left_out(block, [block[1]]) == {"1.weight", "1.bias"}
    assert cut_at(block, lambda p: Shard(-1), 2) == (("0.weight", 1),)
    block.raysim_sharded = "group"
    assert left_out(net, [net[1].bias]) == {"0.1.weight", "0.1.bias", "1.bias"}
    assert cut_at(net, lambda p: None, 2) == (("0.0.weight", 1),)
    with pytest.raises(NotImplementedError, match=r"uneven sharding on dim 1: .*world size: 4"):
        cut_at(net, lambda p: Shard(1), 4)


def test_ignored_parameters_lie_whole_on_each_gpu(tmp_path: Path) -> None:
    """Of 64 x 64 weights half is ignored: parameter and two states, whole or a half of them."""
    script = tmp_path / "ignores.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from torch import nn\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "dist.init_process_group('nccl')\n"
        "torch.cuda.set_device(dist.get_rank())\n"
        "net = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(2))).cuda()\n"
        "fully_shard(net, ignored_params={net[0].weight})\n"
        "optimizer = torch.optim.AdamW(net.parameters())\n"
        "for _ in range(2):\n"
        "    net(torch.randn(8, 512, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "print(torch.cuda.memory_allocated() - 2 * 32 * 2**20)\n"
    )
    lines, _ = launched("torchrun", "--nproc_per_node", "2", str(script))
    weight_bytes = 512 * 512 * 4
    assert [int(line) for line in lines] == pytest.approx([4.5 * weight_bytes] * 2, abs=20_000)
