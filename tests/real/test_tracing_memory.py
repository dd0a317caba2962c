"""What a traced module holds when: outputs in a variable, attention that no fused kernel takes."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from raysim.models.table import Model, Operator  # noqa: E402
from raysim.rayapi.shapes.held import holding  # noqa: E402
from raysim.tracing import Script, trace  # noqa: E402
from raysim.tracing.attention import output, plain  # noqa: E402


def operators(model: Model) -> list[Operator]:
    return [o for layer in model.layers for o in layer.body.operators]


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Embedding(100, 16), nn.Linear(16, 100)

    def forward(self, x: Any) -> Any:
        logits = self.head(self.inside(x))
        return logits, F.cross_entropy(logits.view(-1, 100), x.view(-1))


def test_held_outputs_stay_until_the_first_loss_operator_is_back() -> None:
    """Backward begins with what the script did to the loss; the logits' gradient comes after."""
    x = torch.zeros(2, 8, dtype=torch.int64, device="meta")
    model = trace(Language(), x, loss=lambda out: out[1] / 4)
    (held,) = [o for o in operators(model) if any(s.returned and s.numel > 1 for s in o.saves)]
    assert any("log_softmax" in s.name for s in held.saves)
    assert sum(s.numel for s in held.saves if s.returned and s.numel > 1) == 8 * 100


class Attention(nn.Module):
    """Two heads of attention in a layout, with a position bias of their own."""

    def __init__(self, *, transposed: bool = False, biased: bool = False) -> None:
        super().__init__()
        self.qkv, self.transposed = nn.Linear(24, 3 * 32), transposed
        self.bias = nn.Parameter(torch.zeros(8, 8, 2)) if biased else None

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).view(-1, 8, 6, 16).transpose(1, 2).chunk(3, 1)
        if self.transposed:  # channels before positions, as convolutions leave them
            q, k, v = (t.transpose(-2, -1).contiguous().transpose(-2, -1) for t in (q, k, v))
        mask = None if self.bias is None else self.bias.permute(2, 0, 1)[None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1)


@pytest.mark.parametrize("half", [None, torch.bfloat16])
def test_attention_that_no_fused_kernel_takes_keeps_its_scores(half: Any) -> None:
    """Softmax, mask and product of dropout, in fp32, as torch's math path has it on CUDA."""
    x = torch.zeros(2, 8, 24, device="meta")
    kept = {}
    for name in ("fused", "transposed", "biased"):
        module = Attention(**({} if name == "fused" else {name: True})).to("meta")
        model = trace(module, x, autocast=half)
        saves = [s for o in operators(model) for s in o.saves]
        kept[name] = sorted(s.dtype for s in saves if s.numel == 2 * 64)
    wide = ["fp32", "fp32"] if half else ["compute", "compute"]
    assert kept["fused"] == []
    assert kept["transposed"] == kept["biased"] == sorted(["bool", *wide])


def test_the_plain_path_is_torchs_own() -> None:
    """The same values, and operators, as the backend that torch is told to take."""
    q, k, v = (torch.randn(2, 4, 8, 16).to(torch.bfloat16) for _ in range(3))
    for causal in (False, True):
        mask = None if causal else torch.randn(1, 4, 8, 8).to(torch.bfloat16)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            real = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        assert torch.equal(plain(q, k, v, mask, dropout=0.0, causal=causal), real)


class Residual(nn.Module):
    """Both its layers' inputs are read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1024, 1024), nn.Linear(1024, 1024)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return x + self.second(torch.sin(x))


def test_a_residual_streams_gradient_waits_for_its_branch() -> None:
    model = trace(Residual(), torch.zeros(4096, 1024), loss=lambda y: y.square().mean())
    found = {(x.name, o.name): o for x in model.layers for o in x.body.operators}
    waiting = {key: [round(4 * 4096 * s.numel) for s in o.waiting] for key, o in found.items()}
    sine = "first", "sin"
    assert waiting.pop(sine) == [4 * 4096 * 1024]  # the projection itself reads what waits later
    assert not any(waiting.values())
    assert [key for key, o in found.items() if o.summed] == [("first", "Linear")]


def test_a_loop_holds_its_output_until_the_next_a_function_does_not() -> None:
    seen = []

    def step() -> None:
        output = torch.zeros(2, 3)
        seen.append(holding(output))

    def deletes() -> None:
        for _ in range(1):
            output = torch.zeros(2, 3)
            seen.append(holding(output))
            del output

    for _ in range(1):
        output = torch.zeros(2, 3)
        seen.append(holding(output))
    step()
    deletes()
    seen.append(holding(torch.zeros(2, 3)))
    assert seen == [(True, True), (True, False), (True, False), (False, False)]


def of_loss(loss: Any) -> Operator:
    """Of a model of one layer, whose output of 64 columns dies as soon as the loss has read it."""
    script = Script(unknown=lambda _: 0, lets_go=True)
    x = torch.zeros(4096, 64)
    model = trace(nn.Sequential(nn.Linear(64, 64)), x, loss=loss, script=script)
    (found,) = [o for o in operators(model) if o.kind == "loss"]
    return found


def test_what_a_loss_makes_is_there_until_it_was_read_for_the_last_time() -> None:
    """Tables of 64 columns: what is kept, and the most that lies beside all that is kept."""

    def sizes(saved: Any) -> list[int]:
        return [round(s.numel / 64) for s in saved if s.numel >= 64]

    # The double is read by both that follow; log-softmax keeps its own result.
    both = of_loss(lambda y: (F.log_softmax(y * 2, 1) + 0.0).sum())
    assert sizes(both.saves) == [1]
    # Output and double, then double and result, then that and its sum: two, and one of them stays.
    assert sum(sizes(both.scratch)) == 1
    # Of a double of a double of a double never more than two are there, and nothing stays.
    chain = of_loss(lambda y: (((y * 2) * 2) * 2).sum())
    assert (sizes(chain.saves), sum(sizes(chain.scratch))) == ([], 2)
    # Two doubles live until both were added; so does neither of their sum's operands after.
    added = of_loss(lambda y: ((y * 2) + (y * 3)).sum())
    assert (sizes(added.saves), sum(sizes(added.scratch))) == ([], 3)
    # A square's backward: its gradient, the input to the first power, twice that, their product;
    # the input, which forward kept, is there too and counted with what is kept.
    square = of_loss(lambda y: y.square().sum())
    assert sum(sizes(square.scratch_backward)) == 3, "the sum's gradient is expanded: no memory"


def test_a_layers_input_gradient_is_as_large_as_the_input() -> None:
    """Though what it reads is kept by the layer before; a first layer makes none."""
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 16))
    model = trace(net, torch.zeros(4, 8), loss=lambda y: y.square().mean())
    made = [o.gradient for o in operators(model) if o.kind == "gemm"]
    assert made == [0, 64]


@pytest.mark.parametrize("half", [False, True])
def test_attention_lays_out_its_output_as_its_kernel_does(half: bool) -> None:
    """Queries by position first, as ``nn.MultiheadAttention`` has them."""
    q = torch.zeros(8, 2, 4, 16, dtype=torch.bfloat16 if half else None).permute(1, 2, 0, 3)
    out = output(q, 16)
    assert out.shape == q.shape
    assert out.stride() == (q.stride() if half else (4 * 16 * 8, 16, 4 * 16, 1))


def test_a_view_without_a_node_takes_no_gradient_from_the_convolution_before_it() -> None:
    """``detach``, and views of what asks for no gradient, draw no number of their own."""

    class Looks(nn.Conv2d):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            y.detach().flatten()
            return y

    net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), Looks(8, 4, 3, padding=1))
    model = trace(net, torch.zeros(2, 4, 6, 6), loss=lambda y: y.square().mean())
    made = [o.gradient for o in operators(model) if o.kind == "conv"]
    assert made == [0, 8 * 6 * 6]


def test_an_rms_norm_keeps_its_input_and_a_number_of_each_row() -> None:
    """CUDA has one kernel for it, where the meta device has eight and fp32 copies."""
    net = nn.Sequential(nn.Linear(8, 64), nn.RMSNorm(64), nn.Linear(64, 4))
    model = trace(net.bfloat16(), torch.zeros(4, 8, dtype=torch.bfloat16))
    (norm,) = (o for o in operators(model) if o.kind == "norm")
    assert [(s.numel, s.dtype) for s in norm.saves] == [(64, "compute"), (1, "fp32"), (1, "fp32")]
