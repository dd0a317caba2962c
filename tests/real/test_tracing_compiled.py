"""Traced modules under ``torch.compile``: what is kept, beside what compiling them really keeps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from functorch.compile import make_boxed_func  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch.nn import functional  # noqa: E402

from raysim.models import huggingface  # noqa: E402
from raysim.models.compiled import compiled  # noqa: E402
from raysim.models.table import Model, Operator  # noqa: E402
from raysim.tracing import module as tracing  # noqa: E402
from raysim.tracing import trace  # noqa: E402
from raysim.tracing.walk import COMPILED, compiled_function  # noqa: E402

BATCH, TOKENS, WIDTH, HEADS, VOCABULARY = 4, 64, 32, 4, 256
BYTES = {"fp32": 4, "int64": 8, "bool": 1}
TOLD_APART = 1024
"""Bytes of scalars and statistics of channels, which do not grow with the batch."""


class Gpt(nn.Module):
    """A block of nanoGPT."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        parts = self.qkv(self.ln_1(x)).split(WIDTH, dim=2)
        q, k, v = (t.unflatten(2, (HEADS, -1)).transpose(1, 2) for t in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.proj(y.transpose(1, 2).reshape(x.shape)))
        return x + self.out(functional.gelu(self.fc(self.ln_2(x))))


class Rms(nn.Module):
    """RMSNorm written out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return wide.type_as(x) * self.weight


class Llama(nn.Module):
    """A block of torchtitan's, with a rotary embedding and fewer keys than queries."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = Rms(), Rms()
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // 2, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.w2 = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        h, shape = self.norm_1(x), (-1, WIDTH // HEADS)
        q, k, v = (f(h).unflatten(2, shape) for f in (self.q, self.k, self.v))
        k, v = (t.repeat_interleave(2, 2) for t in (rotated(k), v))
        q, k, v = (t.transpose(1, 2) for t in (rotated(q), k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        h = self.norm_2(x)
        return x + self.w2(functional.silu(self.w1(h)) * self.w3(h))


def rotated(t: Any) -> Any:
    """By its position."""
    half = t.shape[-1] // 2
    angle = torch.arange(t.shape[1], device=t.device)[:, None, None] / torch.ones(half)
    x, y = t.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([x * cos - y * sin, y * cos + x * sin], -1).type_as(t)


class Lm(nn.Module):
    """Some blocks between an embedding and a head with its loss."""

    def __init__(self, make: Callable[[], nn.Module], layers: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(make() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


class Residual(nn.Module):
    """Of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(16, 16, 3, 1, 1, bias=False) for _ in range(2))
        self.norm_1, self.norm_2 = nn.BatchNorm2d(16), nn.BatchNorm2d(16)

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.norm_1(self.first(x)), inplace=True)
        return functional.relu(x + self.norm_2(self.second(y)))


class Convolutions(nn.Module):
    """Some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.blocks = nn.Sequential(*(Residual() for _ in range(3)))

    def forward(self, x: Any) -> Any:
        return self.blocks(self.stem(x)).mean((2, 3)).pow(2).mean()


def kept(model: Model, width: int) -> int:
    """Bytes that a step's forward keeps."""
    return round(
        sum(
            s.numel * BYTES.get(s.dtype, width) * BATCH
            for layer in model.layers
            for s in layer.body.saved().values()
        )
    )


def told(module: nn.Module, inputs: Any, **options: Any) -> Model:
    """Its table, compiled; a word of the compiler's that it cannot be is a failure."""

    def say(message: str) -> None:
        raise AssertionError(message)

    object.__setattr__(module, COMPILED, True)
    options.setdefault("loss", lambda out: out)
    return trace(module, inputs, say=say, **options)


def really_kept(module: nn.Module, inputs: Any) -> int:
    """The same by compiling it, with inductor's decompositions and partitioner."""
    torch._dynamo.reset()
    own = {t.untyped_storage()._cdata for t in [*module.parameters(), *module.buffers()]}
    found: dict[int, Any] = {}

    def pack(t: Any) -> Any:
        if t.untyped_storage()._cdata not in own:
            found[t.untyped_storage()._cdata] = t.untyped_storage()
        return t

    run = torch.compile(module, backend="aot_eager_decomp_partition")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(inputs)
    return sum(storage.nbytes() for storage in found.values())


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda: Lm(lambda: Gpt(dropout=0.1)), torch.float32),
        (lambda: Lm(Llama), torch.bfloat16),
        (Convolutions, torch.float32),
    ],
    ids=["gpt", "llama", "convolutions"],
)
def test_compiled_modules_keep_what_compiling_them_keeps(
    make: Callable[[], nn.Module], dtype: Any
) -> None:
    module = make().to(dtype)
    inputs = torch.randint(0, VOCABULARY, (BATCH, TOKENS))
    if isinstance(module, Convolutions):
        inputs = torch.randn(BATCH, 3, 32, 32)
    eager = kept(trace(module, inputs, loss=lambda out: out), dtype.itemsize)
    found = kept(told(module, inputs), dtype.itemsize)
    real = really_kept(make().to(dtype), inputs)
    assert found == pytest.approx(real, abs=TOLD_APART)
    assert abs(eager - real) > TOLD_APART


def test_a_table_of_a_config_keeps_as_much_per_layer() -> None:
    config = {
        "model_type": "gpt2", "n_embd": 768, "n_layer": 4, "n_head": 12, "vocab_size": 512,
        "n_positions": 64, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0,
        "use_cache": False, "loss_type": "ForCausalLM",
    }  # fmt: skip
    table = compiled(huggingface.build(config | {"dtype": "bfloat16"}, seq_len=64))
    with torch.device("meta"):
        made = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config)).bfloat16()
        ids = torch.zeros(BATCH, 64, dtype=torch.int64)
    traced = told(made, {"input_ids": ids, "labels": ids}, loss=None)
    blocks = [[layer for layer in m.layers if layer.kind == "block"] for m in (table, traced)]
    sizes = [
        [sum(s.numel * BYTES.get(s.dtype, 2) for s in b.body.saved().values()) for b in side]
        for side in blocks
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


def operators(model: Model, *, loss: bool | None = None) -> list[Operator]:
    found = [o for layer in model.layers for o in layer.body.operators]
    return found if loss is None else [o for o in found if (o.kind == "loss") is loss]


def test_fused_kernels_of_a_block_are_those_that_an_h100_ran() -> None:
    """Of a compiled Llama block: norms once forward and, with their sums, twice backward."""
    model = told(Lm(Llama, 6), torch.zeros(BATCH, TOKENS, dtype=torch.int64))
    block = model.layers[3].body
    fused = [o for o in block.operators if o.gemm is None and o.attention is None]
    numel = TOKENS * WIDTH
    gated = [o for o in fused if o.moved == pytest.approx(3 * 3 * numel)]
    assert [(o.kernels, o.backward_moved) for o in gated] == [(1, pytest.approx(5 * 3 * numel))]
    norms = [o for o in fused if o.backward_kernels == 2]
    assert [o.backward_moved for o in norms][-1] == pytest.approx(5 * numel, rel=0.02)
    assert len(norms) == 2
    assert sum(o.kernels for o in fused) == 2 + 3 + 1


def test_only_what_was_given_to_the_compiler_changes() -> None:
    def whole(out: Any) -> Any:
        return functional.cross_entropy(out.flatten(0, 1), ids.flatten())

    def inside(out: Any) -> Any:
        with compiled_function():
            return whole(out)

    ids = torch.zeros(BATCH, TOKENS, dtype=torch.int64)
    module = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Gpt(), nn.Linear(WIDTH, VOCABULARY))
    plain = trace(module, ids, loss=whole)
    only_loss = trace(module, ids, loss=inside)
    assert {o.compiled for o in operators(plain)} == {None}
    assert {o.compiled for o in operators(only_loss, loss=False)} == {False}
    assert {o.compiled for o in operators(only_loss, loss=True)} == {True}
    assert kept(only_loss, 4) < kept(plain, 4)
    without = [sum(o.moved for o in operators(m, loss=False)) for m in (plain, only_loss)]
    assert without[0] == without[1]
    block = told(module[1], torch.zeros(BATCH, TOKENS, WIDTH), loss=None)
    assert {o.compiled for o in operators(block)} == {True}


class WithLogits(Lm):
    """Which hands out its logits beside the loss, as nanoGPT's does."""

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return logits, functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def test_backward_is_given_zeros_for_logits_that_a_compiled_loss_is_not_made_of() -> None:
    ids = torch.zeros(BATCH, TOKENS, dtype=torch.int64)
    given: list[tuple[int, ...]] = []

    def backward(graph: Any, examples: Any) -> Any:
        given.extend(tuple(t.shape) for t in examples if isinstance(t, torch.Tensor))
        return make_boxed_func(graph.forward)

    def forward(graph: Any, _examples: Any) -> Any:
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward)
    torch.compile(WithLogits(Gpt, 2), backend=backend)(ids)[1].backward()
    tangents = given.count((BATCH, TOKENS, VOCABULARY))
    alone, both = (
        sum(s.numel for o in operators(m, loss=True) for s in o.scratch_backward)
        for m in (told(Lm(Gpt), ids), told(WithLogits(Gpt), ids, loss=lambda out: out[1]))
    )
    assert tangents >= 1
    # Beside the zeros a gradient, which alone is written over the logits.
    assert both - alone == 2 * TOKENS * VOCABULARY


def test_layers_alike_are_compiled_once() -> None:
    ids = torch.zeros(BATCH, TOKENS, dtype=torch.int64)
    deep = told(Lm(Gpt, 12), ids)
    bodies = [layer.body for layer in deep.layers if layer.kind == "block"]
    assert len(set(bodies)) <= 3
    less = kept(told(Lm(Gpt, 11), ids), 4)
    least = kept(told(Lm(Gpt, 10), ids), 4)
    assert kept(deep, 4) - less == less - least > 0


def test_what_the_compiler_cannot_be_asked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_args: Any) -> None:
        raise RuntimeError("a forward that looks at values\nmore")

    monkeypatch.setattr(tracing, "_compile", breaks)
    said: list[str] = []
    module, ids = Lm(Gpt), torch.zeros(BATCH, TOKENS, dtype=torch.int64)
    object.__setattr__(module, COMPILED, True)
    model = trace(module, ids, loss=lambda out: out, say=said.append)
    assert said == [
        "torch.compile cannot be followed, what it keeps is eager's: a forward that looks at values"
    ]
    assert {o.compiled for o in operators(model)} == {None}


class Capped(nn.Module):
    """A head whose logits are capped before the loss."""

    def __init__(self, *, returns: bool) -> None:
        super().__init__()
        self.returns = returns
        self.inside, self.head = nn.Embedding(64, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Any) -> Any:
        logits = self.head(self.inside(ids))
        capped = 15 * torch.tanh(logits.float() / 15)
        loss = functional.cross_entropy(capped.flatten(0, 1), ids.flatten())
        return {"loss": loss, "logits": logits} if self.returns else loss


@pytest.mark.parametrize("returns", [False, True])
def test_a_gradient_takes_the_place_of_what_forward_kept_for_it(returns: bool) -> None:
    """Of the capped logits the products' result is kept alone; their gradient lies in it."""
    setattr(model := Capped(returns=returns).bfloat16(), COMPILED, True)
    found = [o for m in trace(model, torch.zeros(BATCH, TOKENS, dtype=torch.int64)).layers
             for o in m.body.operators]  # fmt: skip
    logits = VOCABULARY * TOKENS
    assert [s.numel for o in found for s in o.saves if s.numel >= logits] == [logits]
    assert any(o.overwritten for o in found) is not returns, "not what the caller has"


def test_a_compiled_end_of_a_deep_residual_stream_is_looked_for_once() -> None:
    """Each way through the stream was gone: 1.6 to the number of layers."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.begin, self.end = nn.Linear(8, 8), nn.LayerNorm(8)
            object.__setattr__(self.end, COMPILED, True)

        def forward(self, x: Any) -> Any:
            x = self.begin(x)
            for _ in range(36):
                x = x + x.relu()
            return self.end(x)

    model = trace(Deep(), (torch.zeros(2, 8),), loss=lambda out: out)
    assert any(o.compiled for layer in model.layers for o in layer.body.operators)
