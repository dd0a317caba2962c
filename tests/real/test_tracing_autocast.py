"""Modules traced under ``torch.autocast``, beside torch's lists, its CPU's, tables of configs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from raysim.hardware import catalog  # noqa: E402
from raysim.hardware.cluster import ClusterSpec, NodeGroup  # noqa: E402
from raysim.kernel.simulation import Simulation  # noqa: E402
from raysim.models import huggingface  # noqa: E402
from raysim.models.table import Model, Operator  # noqa: E402
from raysim.tracing import autocast, trace  # noqa: E402
from raysim.tracing import huggingface as traced_config  # noqa: E402
from raysim.training.plan import DdpSettings, TrainingPlan  # noqa: E402
from raysim.training.settings.deepspeed import Optimizer  # noqa: E402
from raysim.training.settings.parallel import Mesh  # noqa: E402
from raysim.training.tower import StepOutcome, simulate  # noqa: E402

BATCH, TOKENS, WIDTH = 2, 8, 64
HALF = torch.bfloat16
GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 3, "n_head": 12, "vocab_size": 8192,
    "n_positions": 1024, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
}  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_size": 768, "num_hidden_layers": 3, "num_attention_heads": 12,
    "intermediate_size": 3072, "vocab_size": 8192, "max_position_embeddings": 1024,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 3,
    "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 8192,
    "max_position_embeddings": 2048,
}  # fmt: skip
VIT = {
    "model_type": "vit", "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 16,
    "intermediate_size": 4096, "image_size": 224, "patch_size": 16,
}  # fmt: skip
HEADS = [
    (GPT2, "GPT2LMHeadModel"), (BERT, "BertForMaskedLM"), (LLAMA, "LlamaForCausalLM"),
    (VIT, "ViTForImageClassification"),
]  # fmt: skip


def test_lists_are_those_of_torchs_header() -> None:
    header = Path(torch.__path__[0], "include", "ATen", "autocast_mode.h").read_text()
    lists = {}
    for name, body in re.findall(r"#define AT_FORALL_(\w+)\(_\)((?:.*\\\n)*.*)", header):
        found = re.findall(r"_\((\w+)(?:, (\w+))?\)", body)
        lists[name] = {f"{op}.{overload}".strip(".") for op, overload in found}
    assert lists["LOWER_PRECISION_FP"] == autocast.HALF
    assert lists["PROMOTE"] == autocast.PROMOTES
    assert lists["FP32_SET_OPT_DTYPE"] == autocast.SETS_DTYPE
    others = autocast.HALF | autocast.PROMOTES | autocast.SETS_DTYPE | autocast.LEFT_ALONE
    assert set(autocast.operators()) - others - set(autocast.NORMS) == lists["FP32"]


class Block(nn.Module):
    """What autocast does alike on CPU and CUDA: products, their inputs' types and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, ids: Any) -> Any:
        x = self.table(ids)
        x = x + self.down(functional.gelu(self.up(x))) * torch.sigmoid(x)
        return self.head(torch.matmul(x @ x.mT, self.up(x)[..., :WIDTH]))


def kept_on_cpu() -> Counter[tuple[int, Any]]:
    """What a real step under CPU's autocast keeps and grows with the batch: elements, type."""
    net, seen = Block(), {}
    weights = {p.untyped_storage().data_ptr() for p in net.parameters()}
    shapes = {(p.numel(), HALF) for p in net.parameters()}

    def keep(t: Any) -> Any:
        key = t.untyped_storage().data_ptr()
        of = t.untyped_storage().nbytes() // t.itemsize, t.dtype
        if key not in weights and of not in shapes:
            seen[key] = of, t
        return t

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t)
    with torch.autocast("cpu", HALF), hooks:
        net(torch.zeros(BATCH, TOKENS, dtype=torch.long)).sum()
    return Counter(of for of, _ in seen.values())


def test_it_keeps_what_torch_keeps() -> None:
    ids = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    model = trace(Block(), ids, loss=lambda y: y.sum(), autocast=HALF)
    types = {"compute": HALF, "fp32": torch.float32, "int64": torch.long}
    saved = [s for x in model.layers for s in x.body.saved().values() if not s.returned]
    assert Counter((round(s.numel * BATCH), types[s.dtype]) for s in saved) == kept_on_cpu()


def operators(body: Any, *given: Any) -> list[Operator]:
    """Of a module that does ``body`` beside a product, under autocast."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return body(self.project(x))

    x = torch.zeros(BATCH, TOKENS, WIDTH)
    model = trace(Net(), x, loss=lambda y: y.float().sum(), autocast=HALF)
    return [o for layer in model.layers for o in layer.body.operators]


N = TOKENS * WIDTH


@pytest.mark.parametrize(
    ("body", "moved"),
    [
        (lambda y: y.relu(), 2 * N),
        (lambda y: y.exp(), 3 * N + 4 * N),
        (lambda y: y.softmax(-1), 3 * N + 4 * N),
        (lambda y: y.softmax(-1, dtype=HALF), 2 * N),
        (lambda y: torch.addcmul(y, y, y.float()), 3 * N + 2 * 3 * N + 8 * N),
    ],
    ids=["neither", "fp32", "sets type", "told its type", "promotes"],
)
def test_operators_take_the_type_of_their_list(body: Any, moved: float) -> None:
    """In 16-bit elements: a cast reads or writes one of fp32, which is two."""
    cast, product, between, *_ = operators(body)
    assert (cast.kind, cast.moved, cast.indexed) == ("elementwise", 3 * N, N)
    assert cast.moved_backward is not None
    assert product.gemm is not None
    assert between.moved == pytest.approx(moved)


def test_a_module_may_switch_it_off() -> None:
    def alone(y: Any) -> Any:
        with torch.autocast("cuda", enabled=False):
            return y.exp()

    _, _, between, *_ = operators(alone)
    assert between.moved == pytest.approx(2 * N)


def test_nothing_of_it_is_left_behind() -> None:
    operators(lambda y: y.exp())
    assert not torch.is_autocast_enabled("cuda")
    assert not torch.is_autocast_enabled(autocast.STANDS_IN)
    assert torch.zeros(2, 2, device="meta").matmul(torch.zeros(2, 2, device="meta")).dtype == (
        torch.float32
    )


def step(model: Model, batch: int) -> StepOutcome:
    """On one H100, long enough for kernels to count and not the host."""
    plan = TrainingPlan(
        model=model, mesh=Mesh(), engine="ddp", micro_batch=batch, precision="fp32",
        ddp=DdpSettings(autocast="bf16"), gradient_accumulation_steps=1, optimizer=Optimizer(),
    )  # fmt: skip
    gpu = catalog.gpu("H100-SXM-80GB")
    node = next(n for n in map(catalog.node, catalog.names("node")) if n.gpu == gpu)
    cluster = ClusterSpec(groups=(NodeGroup(name="gpu", node=node, count=1),))
    return simulate(plan, cluster, simulation=Simulation(), memory=True)


@pytest.mark.parametrize(("values", "head"), HEADS, ids=[h for _, h in HEADS])
def test_traces_and_tables_agree(values: dict[str, Any], head: str) -> None:
    """The rules of ``models.autocast`` were held to an H100's memory, operators are torch's own."""
    length = None if values["model_type"] == "vit" else 1024
    config = values | {"architectures": [head]}
    read = huggingface.build(config, seq_len=length)
    table = step(read, 32)
    traced = step(traced_config.build(config, seq_len=length, autocast="bf16"), 32)
    assert traced.steady_step_ns == pytest.approx(table.steady_step_ns, rel=0.03)
    peaks = [outcome.memory[0].allocated_bytes for outcome in (traced, table)]
    # Tables do not know that the residual stream's gradient waits for a branch's.
    stream = 4 * 32 * (length or 197) * read.hidden_size
    assert 0.99 * peaks[1] <= peaks[0] <= 1.01 * peaks[1] + stream
