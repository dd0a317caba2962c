"""Token mixers that keep a state of fixed size instead of keys and values.

A causal convolution over a few tokens, then each head keeps a matrix that decays and is written by
every token: the gated delta rule (``transformers/models/qwen3_next``) corrects it by what it does
not yet predict of a token's value, Mamba 2 (``mamba2``, ``bamba``, ``nemotron_h``) adds to it.
Training runs over chunks of tokens, products within a chunk and a recurrence between chunks, in the
kernels of causal-conv1d, flash-linear-attention (``fla/ops/gated_delta_rule``) and mamba-ssm
(``ops/triton/ssd_combined.py``): transformers' own code stands in where they are not installed.
What those keep and pass over is counted from their source, kernel by kernel.

Their time is a roofline's, products at the rate of plain ones or bytes at that of streaming
kernels, and of delta rules no less than a time per chunk in the recurrence (``perf.scan``), where
few heads leave SMs idle. Published times of fla's forward kernels agree
(``tests/laws/test_models_scans.py``); backward and Mamba 2 were compared with nothing. Not
modelled: packed sequences, context parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from raysim.models.shapes import Scan
from raysim.models.table import Operator, Parameter, Saved
from raysim.models.tape import Tape, Tensor

UNTIMED = (
    "Kernels of gated delta rules and Mamba 2 take a roofline's time, from their bytes and "
    "products; only forward ones of delta rules were compared with published times."
)
"""What is said to whoever asks for such a model's time."""
CHUNK = 64
"""Tokens of a chunk (``chunk_size`` of fla's kernels and of transformers)."""


class Mixer(Protocol):
    """What stands in a layer in attention's place."""

    @property
    def divisible(self) -> list[tuple[str, int]]:
        """Config keys that tensor parallelism must divide."""

    def run(self, tape: Tape, x: Tensor) -> Tensor:
        """Its modules, from the normed input to what is added to the residual."""


class ScanCost(NamedTuple):
    """A fused recurrence over one sample, in elements and kernels as of an ``Operator``."""

    flops: float
    flops_backward: float
    moved: float
    moved_backward: float
    kernels: int
    kernels_backward: int


def recurrence(key_heads: int, heads: int, key_dim: int, value_dim: int) -> float:
    """Elements per token that the kernel of a delta rule's states reads and writes.

    Keys, corrections of both kinds, a state per chunk, corrected values.
    """
    states = heads * key_dim * value_dim / CHUNK
    return float(key_heads * key_dim + heads * key_dim + 2 * heads * value_dim) + states


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """A gated delta rule's layer, ``linear_attn``."""

    cls: str
    """Class prefix, for example ``Qwen3Next``."""
    key_heads: int
    value_heads: int
    key_dim: int
    """Of a head."""
    value_dim: int
    """Of a head."""
    taps: int
    """Tokens that the convolution sees."""
    fused: bool
    """Qwen3-Next: one projection for queries, keys, values and gate, grouped by key head, and one
    for strength and decay."""

    @property
    def keys(self) -> int:
        """Width of all keys, and of all queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all values."""
        return self.value_heads * self.value_dim

    @property
    def divisible(self) -> list[tuple[str, int]]:
        """Heads: a rank has whole ones, with the keys that their values belong to."""
        return [
            ("linear_num_key_heads", self.key_heads), ("linear_num_value_heads", self.value_heads),
        ]  # fmt: skip

    def run(self, tape: Tape, x: Tensor) -> Tensor:
        """``Qwen3NextGatedDeltaNet.forward``."""
        name, cls, heads = "linear_attn", f"{self.cls}GatedDeltaNet", self.value_heads
        own = tuple(Parameter(name=f"{name}.{p}", shape=(heads,), shard=0)
                    for p in ("dt_bias", "A_log"))  # fmt: skip
        tape.append(name, cls, parameters=own)
        if self.fused:
            qkv, z, b, a = self._regrouped(tape, name, cls, x)
        else:
            qkv, z, b, a = (
                tape.linear(f"{name}.in_proj_{p}", x, width, bias=False, split="column")
                for p, width in (("qkv", 2 * self.keys + self.values), ("z", self.values),
                                 ("b", heads), ("a", heads))
            )  # fmt: skip
        qkv = causal_conv(tape, f"{name}.conv1d", qkv, self.taps, bias=False)
        beta, decay = _strength_and_decay(tape, name, cls, b, a)
        out = self._rule(tape, name, cls, qkv, beta, decay)
        out = gated_norm(tape, f"{name}.norm", out, z, self.value_dim, f"{self.cls}RMSNormGated")
        return tape.linear(f"{name}.out_proj", out, x.width, bias=False, split="row")

    def _regrouped(self, tape: Tape, name: str, cls: str, x: Tensor) -> tuple[Tensor, ...]:
        """``fix_query_key_value_ordering``: each part copied out of its groups, q, k and v joined.

        Copies of q, k, v, z, b and a, and one that joins the first three; backward joins the
        gradients of either projection.
        """
        k, v, heads = self.keys, self.values, self.value_heads
        qkvz = tape.linear(f"{name}.in_proj_qkvz", x, 2 * (k + v), bias=False, split="column")
        ba = tape.linear(f"{name}.in_proj_ba", x, 2 * heads, bias=False, split="column")
        qkv = replace(qkvz, name=f"{name}.mixed", width=2 * k + v)
        tape.run(
            name, cls, operator=f"{name}.regroup", inputs=(qkvz, ba), output=qkv,
            moved=x.rows * (2 * (2 * k + 2 * v) + 4 * heads + 2 * (2 * k + v)), kernels=7,
            moved_backward=x.rows * (4 * (k + v) + 4 * heads), kernels_backward=2, views=14,
        )  # fmt: skip
        z, b, a = (
            replace(qkvz, name=f"{name}.{p}", width=w)
            for p, w in (("z", v), ("b", heads), ("a", heads))
        )
        return qkv, z, b, a

    def _rule(
        self, tape: Tape, name: str, cls: str, qkv: Tensor, beta: Tensor, decay: Tensor
    ) -> Tensor:
        """``chunk_gated_delta_rule``: what its function keeps."""
        heads, rows, k, v = self.value_heads, qkv.rows, float(self.keys), float(self.values)
        cost = delta_rule(rows, self.key_heads, heads, self.key_dim, self.value_dim)
        out = Tensor(name=f"{name}.core.out", rows=rows, width=self.values, sharded=qkv.sharded)

        def kept(part: str, width: float, *, fp32: bool = False) -> Saved:
            return Saved(
                name=f"{name}.{part}", numel=rows * width, dtype="fp32" if fp32 else "compute",
                sharded=qkv.sharded,
            )  # fmt: skip

        tape.forks(qkv, beta, decay)
        operator = Operator(
            name=f"{name}.core", kind="scan", **cost._asdict(), output=out.numel,
            scan=Scan(
                heads=heads, key_dim=self.key_dim, value_dim=self.value_dim, channels=qkv.width,
                taps=self.taps, steps=-(-rows // CHUNK),
                recurrent=rows * recurrence(self.key_heads, heads, self.key_dim, self.value_dim),
            ),
            split="heads" if qkv.sharded else "none",
            saves=(
                kept("query", k), kept("query_rstd", self.key_heads, fp32=True),
                kept("key", k), kept("key_rstd", self.key_heads, fp32=True),
                kept("value", v), kept("decays", heads, fp32=True), beta.saved(),
                kept("inverse", heads * CHUNK),
            ),
        )  # fmt: skip
        tape.append(name, cls, operator)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """A layer of Mamba 2 (state space duality)."""

    name: str
    """Of its module, for example ``mamba``."""
    cls: str
    """Its class."""
    heads: int
    head_dim: int
    state: int
    """Width of a head's keys, which the heads of a group share."""
    groups: int
    taps: int
    chunk: int
    conv_bias: bool
    bias: bool
    """Of both projections."""
    keys: tuple[str, str]
    """What the config calls heads and groups."""

    @property
    def width(self) -> int:
        """Of all heads' values."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: values, keys and queries."""
        return self.width + 2 * self.groups * self.state

    @property
    def divisible(self) -> list[tuple[str, int]]:
        """A rank has whole heads with their groups' keys."""
        return [(self.keys[0], self.heads), (self.keys[1], self.groups)]

    def run(self, tape: Tape, x: Tensor) -> Tensor:
        """``forward`` in training: one fused function from the first projection through the last.

        ``mamba_split_conv1d_scan_combined`` keeps its input, the scan's output and a deviation per
        group; what the last projection reads is computed again.
        """
        name = self.name
        own = [Parameter(name=f"{name}.{p}", shape=(self.heads,), shard=0)
               for p in ("dt_bias", "A_log", "D")]  # fmt: skip
        tape.append(name, self.cls, parameters=tuple(own))
        zxbcdt = tape.linear(
            f"{name}.in_proj", x, self.width + self.channels + self.heads, bias=self.bias,
            split="column",
        )  # fmt: skip
        conv = [
            Parameter(name=f"{name}.conv1d.weight", shape=(self.channels, 1, self.taps), shard=0)
        ]
        if self.conv_bias:
            conv.append(Parameter(name=f"{name}.conv1d.bias", shape=(self.channels,), shard=0))
        tape.append(f"{name}.conv1d", "Conv1d", parameters=tuple(conv))
        out = self._combined(tape, zxbcdt)
        weight = Parameter(name=f"{name}.norm.weight", shape=(self.width,), shard=0)
        tape.append(f"{name}.norm", "RMSNormGated", parameters=(weight,))
        return tape.linear(
            f"{name}.out_proj", out, x.width, bias=self.bias, split="row", keep=False
        )

    def _combined(self, tape: Tape, zxbcdt: Tensor) -> Tensor:
        """Convolution, scan and gated norm."""
        rows, groups, name, sharded = zxbcdt.rows, self.groups, self.name, zxbcdt.sharded
        cost = state_space(
            rows, self.heads, self.head_dim, self.state, groups, self.chunk, self.taps
        )
        out = Tensor(name=f"{name}.norm.out", rows=rows, width=self.width, sharded=sharded)
        assert not tape.forks(zxbcdt), "the projection is read by the fused function alone"
        operator = Operator(
            name=f"{name}.core", kind="scan", **cost._asdict(), output=out.numel,
            scan=Scan(heads=self.heads, key_dim=self.state, value_dim=self.head_dim,
                      channels=self.channels, taps=self.taps),
            split="heads" if sharded else "none", dispatches=16,
            saves=(
                zxbcdt.saved(), replace(out, name=f"{name}.scanned").saved(),
                replace(out, name=f"{name}.rstd", width=groups, dtype="fp32").saved(),
            ),
        )  # fmt: skip
        tape.append(name, self.cls, operator)
        return out


def delta_rule(
    rows: float,
    key_heads: int,
    heads: int,
    key_dim: int,
    value_dim: int,
    *,
    by_channel: bool = False,
) -> ScanCost:
    """``chunk_gated_delta_rule`` over ``rows`` tokens, with so many heads of keys and of values.

    ``by_channel``: ``chunk_kda``, where each of a head's keys' channels decays by itself, so that
    decays are as large as keys, and scores of queries are kept beside those of keys.

    Products per token and value head, for heads of dk and dv and chunks of C: keys with keys and
    queries (4 C dk), the chunk's corrections (2 C dk + 2 C dv), their answers (2 C dv), and the
    state decayed keys read, values write, queries read (6 dk dv). Backward computes corrections and
    states again, which are not kept.
    """
    k, v, wide = float(key_heads * key_dim), float(heads * value_dim), float(heads * key_dim)
    states, inverse = heads * key_dim * value_dim / CHUNK, float(heads * CHUNK)
    corrections = k + v + inverse + wide + v  # keys, values and inverse into w and u
    chained = recurrence(key_heads, heads, key_dim, value_dim)
    forward = (
        2 * (2 * k + v)  # contiguous copies of queries, keys and values
        + 4 * k  # their lengths, queries' and keys'
        + 4 * heads  # decays added up within a chunk, in fp32
        + k + inverse  # keys with keys, and the triangle inverted
        + corrections + chained
        + 2 * k + v + states + v  # outputs
    )  # fmt: skip
    backward = (
        corrections + chained
        + 2 * k + 2 * v  # values' gradient within a chunk
        + 2 * k + wide + 3 * v + states  # states' gradient, from the last chunk to the first
        + 2 * k + 3 * v + 2 * states + 3 * wide  # that of queries, keys and w
        + k + v + inverse + 2 * wide + 2 * v  # that of the corrections' inputs
        + 3 * wide + 2 * (wide + k) + 6 * k + 8 * heads  # sums over heads, lengths, decays
        + 2 * (2 * k + v)  # the three gradients joined
    )  # fmt: skip
    if by_channel:  # decays in fp32: added up, then read beside keys by each kernel
        forward += 12 * wide + 2 * inverse
        backward += 24 * wide + 2 * inverse
    padded, square = -(-rows // CHUNK) * CHUNK, key_dim * value_dim
    return ScanCost(
        flops=padded * heads * (CHUNK * (6 * key_dim + 4 * value_dim) + 6 * square),
        flops_backward=padded * heads * (CHUNK * (16 * key_dim + 10 * value_dim) + 16 * square),
        moved=rows * forward, moved_backward=rows * backward, kernels=10, kernels_backward=14,
    )  # fmt: skip


def state_space(
    rows: float, heads: int, head_dim: int, state: int, groups: int, chunk: int, taps: int
) -> ScanCost:
    """Convolution, scan and gated norm of ``mamba_split_conv1d_scan_combined``.

    Products per token, for values P wide, N of a state, G groups and chunks of C: queries with keys
    (2 G C N), their answers (2 C P), the state values write and queries read (4 P N). Backward
    computes states and scores again.
    """
    width, channels = heads * head_dim, heads * head_dim + 2 * groups * state
    values, keys, scores = float(width), float(groups * state), float(groups * chunk)
    states = width * state / chunk
    forward = (
        2 * channels  # convolution
        + 5 * heads  # steps and decays, in fp32
        + values + keys + 2 * states  # states that chunks write, in fp32
        + 3 * states  # handed from chunk to chunk
        + 2 * keys + 2 * scores  # queries with keys, in fp32
        + 2 * scores + 2 * values + keys + states  # outputs
        + 3 * values  # gated norm
    )  # fmt: skip
    backward = (
        2 * channels + 6 * heads + values + 3 * keys + 6 * states + 2 * scores  # again
        + 6 * values  # gated norm, and its output again
        + values + keys + 2 * states  # gradient of the states queries read
        + 6 * states  # from chunk to chunk
        + 3 * values + keys + 2 * scores + states  # of values
        + 2 * (values + states + 2 * keys)  # of keys and queries, by the states
        + 2 * values + 4 * scores + 6 * keys + 4 * scores  # and by the scores
        + 2 * values + 2 * scores + 2 * heads  # of decays
        + 3 * channels
    )  # fmt: skip
    padded, convolved = -(-rows // chunk) * chunk, 2.0 * rows * channels * taps
    flops = 2 * groups * chunk * state + 2 * chunk * width + 4 * width * state
    again = 6 * groups * chunk * state + 6 * chunk * width + 10 * width * state
    return ScanCost(
        flops=padded * flops + convolved, flops_backward=padded * again + 3 * convolved,
        moved=rows * forward, moved_backward=rows * backward, kernels=10, kernels_backward=26,
    )  # fmt: skip


def causal_conv(tape: Tape, name: str, x: Tensor, taps: int, *, bias: bool) -> Tensor:
    """``causal_conv1d_fn``, a filter per channel with SiLU inside; keeps its input alone.

    Backward makes the input's gradient and, into zeroed fp32, the filter's.
    """
    parameters = [Parameter(name=f"{name}.weight", shape=(x.width, 1, taps), shard=0)]
    if bias:
        parameters.append(Parameter(name=f"{name}.bias", shape=(x.width,), shard=0))
    out = replace(x, name=f"{name}.out", storage=0)
    forks = tape.forks(x)
    assert not forks, "a mixer's input to its convolution is used once"
    tape.append(
        name, "Conv1d",
        Operator(
            name=name, kind="conv", flops=2.0 * x.numel * taps, moved=2 * x.numel,
            moved_backward=3 * x.numel, saves=(x.saved(),), output=out.numel,
            split="heads" if x.sharded else "none", kernels=1, kernels_backward=3, dispatches=6,
        ),
        parameters=tuple(parameters),
    )  # fmt: skip
    return out


def _strength_and_decay(
    tape: Tape, name: str, cls: str, b: Tensor, a: Tensor
) -> tuple[Tensor, Tensor]:
    """``sigmoid(b)``, and ``-exp(A_log) * softplus(a + dt_bias)`` in fp32."""
    beta = replace(b, name=f"{name}.beta", storage=0)
    decay = replace(a, name=f"{name}.decay", dtype="fp32", storage=0)
    n = a.numel
    tape.run(
        name, cls, operator=f"{name}.beta", inputs=(b,), output=beta, moved=2 * n,
        moved_backward=3 * n, saves=(beta.saved(),),
    )  # fmt: skip
    # cast, sum, softplus, product, and three kernels on the heads' own numbers
    tape.run(
        name, cls, operator=f"{name}.decay", inputs=(a,), output=decay, moved=15 * n, kernels=7,
        moved_backward=23 * n, kernels_backward=10,
        saves=(replace(decay, name=f"{name}.shifted").saved(),
               replace(decay, name=f"{name}.softplus").saved()),
    )  # fmt: skip
    return beta, decay


def gated_norm(tape: Tape, name: str, x: Tensor, gate: Tensor, head_dim: int, cls: str) -> Tensor:
    """``Qwen3NextRMSNormGated``: each head normed in fp32, scaled, times ``silu(gate)`` in fp32.

    Keeps, of a head's values: the fp32 copy, what it is normed to and what that is scaled to; the
    gate in fp32 and its SiLU.
    """
    heads = x.width // head_dim
    wide = replace(x, dtype="fp32", storage=0)

    def kept(part: str, t: Tensor) -> Saved:
        return replace(t, name=f"{name}.{part}").saved()

    rstd = replace(wide, name=f"{name}.rstd", width=heads)
    narrow = replace(x, storage=0)
    return tape.run(
        name, cls, kind="norm", inputs=(x, gate), output=replace(narrow, name=f"{name}.out"),
        moved=33 * x.numel, kernels=12, moved_backward=73 * x.numel, kernels_backward=24,
        saves=(
            kept("x32", wide), rstd.saved(), kept("normed", narrow), kept("scaled", narrow),
            kept("gate32", wide), kept("silu", wide),
        ),
        parameters=(Parameter(name=f"{name}.weight", shape=(head_dim,)),),
    )  # fmt: skip
