"""Modules of one's own, traced: counts by hand, sharing, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from raysim.errors import ScenarioError  # noqa: E402
from raysim.models import sequential  # noqa: E402
from raysim.models.shapes import BatchNorm  # noqa: E402
from raysim.models.table import Gemm, Layer, Model  # noqa: E402
from raysim.models.tape import SORTED  # noqa: E402
from raysim.tracing import trace  # noqa: E402
from raysim.tracing.operators import INDEXED_FP32, TURNED  # noqa: E402

BATCH = 4


def classes(outputs: Any) -> Any:
    return functional.cross_entropy(outputs, torch.zeros(len(outputs), dtype=torch.long))


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    )


class Residual(nn.Module):
    """Two convolutions around a batch norm, and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Any) -> Any:
        h = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(h)) + x)


class SmallResNet(nn.Module):
    """Stem, two stacks with a strided convolution between them, pooled head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, stride=2, padding=3)
        self.layer1 = nn.Sequential(Residual(16), Residual(16))
        self.down = nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=4)
        self.layer2 = nn.Sequential(Residual(32), Residual(32), Residual(32))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        x = self.layer2(self.down(self.layer1(torch.relu(self.stem(x)))))
        return self.fc(x.mean((2, 3)))


class Shared(nn.Module):
    """One module under two names, one weight in two modules, one parameter unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again = self.first
        self.other = nn.Linear(8, 8, bias=False)
        self.other.weight = self.first.weight
        self.spare = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.other(self.again(self.first(x)))


def saved(layer: Layer) -> dict[str, float]:
    return {s.name: s.numel for s in layer.body.saved().values()}


def real_saved_bytes(run: Callable[[], Any], model: nn.Module) -> int:
    """Distinct storages that autograd keeps in a real forward, parameters excluded."""
    owned = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    storages: dict[int, int] = {}
    alive = []

    def pack(t: Any) -> Any:
        alive.append(t)
        if t.untyped_storage().data_ptr() not in owned:
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run()
    return sum(storages.values())


def test_a_sequential_is_one_layer_per_child() -> None:
    traced = trace(mlp(), torch.zeros(BATCH, 784), loss=classes)
    table = sequential.build([(784, 512), "relu", (512, 256), "relu", (256, 10)])
    assert [(x.name, x.kind, x.cls, x.output) for x in traced.layers] == [
        (x.name, x.kind, x.cls, x.output) for x in table.layers
    ]
    assert {n: p.shape for n, p in traced.parameters()} == {
        n: p.shape for n, p in table.parameters()
    }
    assert [o.gemm for x in traced.layers for o in x.body.operators if o.gemm] == [
        o.gemm for x in table.layers for o in x.body.operators if o.gemm
    ]
    assert traced.flops == pytest.approx(table.flops, rel=1e-2)  # the table counts ReLU's too
    assert traced.num_parameters == 784 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10


def test_a_sequential_keeps_its_input_and_relu_outputs_once() -> None:
    """ReLU's output and the next Linear's input are one storage, held by the ReLU's layer."""
    layers = trace(mlp(), torch.zeros(BATCH, 784), loss=classes).layers
    assert [sum(saved(x).values()) for x in layers[:4]] == [784, 512, 0, 256]
    assert saved(layers[4])["loss._log_softmax"] == 10
    first = [o for o in layers[0].body.operators if o.gemm]
    second = [o for o in layers[2].body.operators if o.gemm]
    # The data need no gradient: the first backward has one product and the bias's sum.
    assert (first[0].kernels_backward, second[0].kernels_backward) == (2, 3)


def test_a_convolution_says_its_taps_strides_and_memory_format() -> None:
    def layers(form: Any) -> list[Any]:
        net = nn.Sequential(
            nn.Conv2d(3, 8, 7, stride=2, padding=3), nn.Conv2d(8, 8, 3, groups=8),
            nn.ConvTranspose2d(8, 4, 4, stride=2),
        )  # fmt: skip
        x = torch.zeros(2, 3, 32, 32).contiguous(memory_format=form)
        return [
            o for layer in trace(net, x).layers for m in layer.body.modules for o in m.operators
        ]

    stem, depthwise, up = layers(torch.channels_last)
    assert [o.conv.taps for o in (stem, depthwise, up)] == [49, 9, 16]
    assert [o.conv.steps for o in (stem, depthwise, up)] == [4, 1, 4]
    assert [o.conv.transposed for o in (stem, depthwise, up)] == [False, False, True]
    assert [o.gradients for o in (stem, depthwise, up)] == ["weights", "all", "all"]
    assert all(o.conv.channels_last for o in (stem, depthwise, up))  # it is handed on
    assert not any(o.conv.channels_last for o in layers(torch.contiguous_format))


def test_a_batch_norm_stays_by_itself_with_its_channels() -> None:
    net = nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()))
    x = torch.zeros(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    (layer,) = trace(net, x).layers
    found = [o.batch_norm for m in layer.body.modules for o in m.operators if o.kind == "norm"]
    assert [n for n in found if n] == [BatchNorm(channels=8, channels_last=True)]


def test_convolutions_equal_a_real_run() -> None:
    model, x = SmallResNet(), torch.randn(BATCH, 3, 32, 32)
    traced = trace(model, x, loss=classes)
    counter = FlopCounterMode(display=False)
    with counter:
        model(x)
    assert traced.flops == counter.get_total_flops() / BATCH
    kept = sum(
        s.numel * {"compute": 4, "int64": 8}[s.dtype]
        for layer in traced.layers
        for s in layer.body.saved().values()
        if not s.returned
    )
    assert kept * BATCH == real_saved_bytes(lambda: classes(model(x)), model)
    assert traced.num_parameters == sum(p.numel() for p in model.parameters())
    assert traced.sample_unit == "images"


def test_stacks_of_blocks_are_layers_and_so_is_what_stands_between() -> None:
    layers = trace(SmallResNet(), torch.zeros(BATCH, 3, 32, 32), loss=classes).layers
    assert [(x.name, x.kind) for x in layers] == [
        ("stem", "other"), ("layer1.0", "block"), ("layer1.1", "block"), ("down", "other"),
        ("layer2.0", "block"), ("layer2.1", "block"), ("layer2.2", "block"), ("fc", "head"),
    ]  # fmt: skip
    # 32 x 32 images: 16 x 16 after the stem, 8 x 8 after the strided convolution
    assert [x.output for x in layers[:5]] == [16 * 256, 16 * 256, 16 * 256, 32 * 64, 32 * 64]
    (down,) = [o.gemm for o in layers[3].body.operators if o.gemm]
    assert down == Gemm(rows=64.0 * 4, n=8, k=4 * 9, groups=4)


def test_attention_inside_multi_head_attention_is_one_fused_kernel() -> None:
    block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    traced = trace(nn.TransformerEncoder(block, 3), torch.zeros(BATCH, 10, 32))
    assert [x.kind for x in traced.layers] == ["block"] * 3
    (core,) = [o for o in traced.layers[0].body.operators if o.attention]
    assert core.attention is not None
    assert (core.attention.heads, core.attention.q_len, core.attention.head_dim) == (4, 10, 8)
    assert core.flops == 4 * 10 * 10 * 32
    names = {n for n, _ in traced.parameters()}
    assert "layers.0.self_attn.out_proj.weight" in names  # used without its module being called
    assert traced.num_parameters == 3 * sum(p.numel() for p in block.parameters())
    masks = [s for s in traced.layers[0].body.saved().values() if s.dtype == "bool"]
    assert sorted(s.numel for s in masks) == [320, 320, 640]  # three dropouts, a byte each


def test_shared_weights_count_once_and_unused_ones_are_there() -> None:
    model = Shared()
    traced = trace(model, torch.zeros(BATCH, 8))
    tied = {n: p.tied_to for n, p in traced.parameters()}
    assert tied == {
        "first.weight": None,
        "first.bias": None,
        "again.weight": "first.weight",
        "again.bias": "first.bias",
        "other.weight": "first.weight",
        "spare.weight": None,
        "spare.bias": None,
    }
    assert traced.num_parameters == sum(p.numel() for p in model.parameters())
    assert traced.num_trainable == traced.num_parameters
    assert traced.flops == 3 * 2 * 8 * 8


def test_frozen_parameters_are_not_trainable() -> None:
    model = mlp()
    model[0].requires_grad_(requires_grad=False)
    traced = trace(model, torch.zeros(BATCH, 784), loss=classes)
    assert traced.num_parameters - traced.num_trainable == 784 * 512 + 512
    assert saved(traced.layers[0]) == {}  # nothing behind it needs the input


def test_the_module_and_the_random_state_stay_as_they_were() -> None:
    model, labels = SmallResNet().eval(), torch.randint(10, (BATCH,))
    before = copy.deepcopy(model.state_dict())
    state, given = torch.get_rng_state(), torch.randn(BATCH, 3, 32, 32)
    rng = torch.get_rng_state()
    copied, kept_labels = given.clone(), labels.clone()
    trace(model, given, loss=lambda y: functional.cross_entropy(y + torch.rand(()), labels))
    assert not torch.equal(state, rng)  # the check below can fail
    assert torch.equal(torch.get_rng_state(), rng)
    assert not model.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())
    assert torch.equal(given, copied)
    assert torch.equal(labels, kept_labels)
    assert not model._forward_hooks
    assert not model.stem._forward_pre_hooks


@pytest.mark.parametrize("batch", [2, 3, 8])
def test_quantities_per_sample_do_not_depend_on_the_batch(batch: int) -> None:
    def table(size: int) -> list[tuple[float, float, float]]:
        traced = trace(SmallResNet(), torch.zeros(size, 3, 32, 32))
        return [
            (o.flops, o.moved - small, o.output)
            for layer in traced.layers
            for o in layer.body.operators
            for small in [o.moved % 64 if o.kind == "norm" else 0.0]  # running statistics
        ]

    assert table(batch) == table(4)


def test_a_16_bit_copy_shows_the_casts() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(16))

        def forward(self, x: Any) -> Any:
            return self.weight * x.float().square().to(x.dtype)

    x = torch.zeros(BATCH, 16)
    full = trace(Careful(), x.requires_grad_())
    half = trace(Careful(), x.requires_grad_(), dtype=torch.bfloat16)
    assert (full.config_dtype, half.config_dtype) == ("fp32", "bf16")
    kinds = [{s.dtype for x in m.layers for s in x.body.saved().values()} for m in (full, half)]
    assert kinds == [{"compute"}, {"compute", "fp32"}]


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.inner(x) if x.sum() > 0 else x


class Counts(nn.Module):
    def forward(self, x: Any) -> Any:
        return x[x > 0]


class Checkpoints(nn.Module):
    gradient_checkpointing = True

    def forward(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Branches(), "Branches cannot be traced on shapes alone"),
        (Counts(), "aten.index"),
        (nn.Sequential(nn.Linear(8, 8), Branches()), r"Sequential\.1 cannot be traced"),
        (Checkpoints(), "checkpoints activations itself"),
        (nn.LazyLinear(4), "run the lazy module once first"),
    ],
)
def test_what_cannot_be_traced_is_said_with_its_place(module: nn.Module, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        trace(module, torch.zeros(BATCH, 8))


@pytest.mark.parametrize("given", [(), {}, torch.zeros(()), torch.zeros(0, 4)])
def test_inputs_without_a_batch_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="leading dimension is the batch"):
        trace(mlp(), given)


def test_bilinear_up_sampling_pays_by_the_larger_tensor() -> None:
    def found(form: Any) -> tuple[float, float]:
        class Body(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv = nn.Conv2d(4, 4, 1)

            def forward(self, x: Any) -> Any:
                return functional.interpolate(self.conv(x), scale_factor=4, mode="bilinear")

        x = torch.zeros(BATCH, 4, 8, 8).contiguous(memory_format=form)
        operators = [o for layer in trace(Body(), x).layers for o in layer.body.operators]
        return sum(o.indexed for o in operators), sum(o.indexed_backward for o in operators)

    first, last = found(torch.contiguous_format), found(torch.channels_last)
    assert first[0] == last[0] == pytest.approx(5.9 * 4 * 32 * 32)
    assert first[1] > 2 * last[1] > 0  # sums by atomic additions


def test_bags_read_every_row_they_sum_and_sort_for_its_gradient() -> None:
    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(100, 8, mode="sum")

        def forward(self, indices: Any) -> Any:
            return self.bag(indices)

    model = trace(Body(), torch.zeros(BATCH, 5, dtype=torch.int64))
    (found,) = [o for x in model.layers for o in x.body.operators if o.kind == "embedding"]
    assert 5 * 8 + 8 <= found.moved < 2 * (5 * 8 + 8)  # and some integers
    assert found.moved_backward == 5 * 8
    assert found.indexed_backward == SORTED * 5 * 8
    assert found.kernels_backward > 10


def test_a_traced_model_is_a_model() -> None:
    traced = trace(mlp(), torch.zeros(BATCH, 784), name="digits", loss=classes)
    assert isinstance(traced, Model)
    assert (traced.name, traced.architecture, traced.model_type) == (
        "digits", "Sequential", "traced",
    )  # fmt: skip


def test_broadcasts_strides_and_casts_are_indexed() -> None:
    """Elements that kernels reach by index arithmetic, from their operands' shapes and strides."""

    def indexed(run: Callable[[Any], Any]) -> tuple[float, float]:
        class Body(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(8))

            def forward(self, x: Any) -> Any:
                return run(x * self.weight)

        x = torch.randn(BATCH, 6, 8)
        model = trace(Body(), (x,), loss=lambda out: out.sum())
        found = [o for layer in model.layers for o in layer.body.operators]
        return sum(o.indexed for o in found), sum(o.indexed_backward for o in found)

    weighted, back = indexed(lambda x: x)  # one product with a row, in fp32
    assert weighted == INDEXED_FP32 * 6 * 8
    assert back >= weighted
    assert indexed(lambda x: x + x)[0] == weighted
    turned = indexed(lambda x: x.transpose(1, 2) + x.reshape(BATCH, 8, 6))[0]
    assert turned == pytest.approx(weighted + TURNED * 6 * 8)
    assert indexed(lambda x: x.to(torch.bfloat16))[0] == pytest.approx(weighted + 6 * 8)


class Patches(nn.Module):
    """What a convolution has made lies channels first."""

    def __init__(self, copied: bool) -> None:
        super().__init__()
        self.scale, self.norm, self.copied = (
            nn.Parameter(torch.ones(64, 1)),
            nn.LayerNorm(64),
            copied,
        )

    def forward(self, x: Any) -> Any:
        x = (x * self.scale).mT
        return self.norm(x.contiguous() if self.copied else x)


def test_a_layer_norm_copies_an_input_that_lies_otherwise_first() -> None:
    """In forward, and again in backward, whose gradient does not."""
    found = []
    for copied in (True, False):
        model = trace(Patches(copied), torch.randn(BATCH, 64, 32), loss=lambda y: y.sin().sum())
        operators = (o for layer in model.layers for o in layer.body.operators)
        found.append(next(o for o in operators if o.kind == "norm"))
    plain, first = found
    assert first.kernels - plain.kernels == 1
    assert first.moved - plain.moved == 2 * 64 * 32
    assert first.indexed - plain.indexed == pytest.approx(TURNED * 64 * 32)
    assert first.backward_kernels - plain.backward_kernels == 1
    assert first.backward_moved - plain.backward_moved == 2 * 64 * 32


class Asking(nn.Module):
    """Looks at what lies on the GPU, as transformers does for padding and packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        h = self.inside(x)
        positions = torch.arange(8, device=x.device)
        return self.out(h) if (positions >= 0).all() else h


def test_a_value_of_the_gpu_is_waited_for_also_where_it_is_known() -> None:
    module = Asking()
    (plain, asking) = (
        [o for layer in model.layers for o in layer.body.operators if o.kind == "sync"]
        for model in (
            trace(nn.Sequential(module.inside, module.out), torch.zeros(BATCH, 8), loss=classes),
            trace(module, torch.zeros(BATCH, 8), loss=classes),
        )
    )
    assert not plain
    assert [(o.kernels, o.backward_kernels, o.dispatched) for o in asking] == [(0, 0, 1)]
