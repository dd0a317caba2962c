"""Shapes of kernels that a product's does not say, as operators of the layer table carry them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

When = Literal[
    "forward",   # behind the forward of its module
    "backward",  # before the backward of its module
    "gradient",  # behind it
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What ranks of one replica exchange around an operator of theirs that is divided already."""

    op: str
    when: When
    numel: float
    """Elements of the whole that is gathered or reduced, per sample."""
    dtype: Literal["compute", "fp32"] = "compute"
    """Other types are counted in elements of 4 bytes."""
    fixed: bool = False
    """The elements do not grow with samples."""
    group: str = "tp"
    """Tensor-parallel, expert-parallel (``ep``) or data-parallel ranks (``dp``, parts of them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """What the product that a convolution lowers to does not say of it."""

    taps: int
    """Positions of the kernel."""
    steps: int = 1
    """Strides multiplied: input positions per output position."""
    transposed: bool = False
    biased: bool = False
    """cuDNN's result gets its bias in a kernel of torch's own."""
    channels_last: bool = False
    """How its input lies in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNorm:
    """Statistics over samples and positions, of each channel."""

    channels: int
    channels_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """Of one with weights, over whose rows backward sums."""

    rows: float
    """Of a sample."""
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """Shape of a stack of recurrent layers (LSTM, GRU) that one call runs."""

    gates: int
    width: int
    inputs: tuple[int, ...]
    """Width of what each layer and direction is given."""
    directions: int
    steps: float
    rows: float
    """Samples that take a step together."""
    over_steps: bool
    """A sample of the table is a step of all rows, not a row with all its steps."""

    @property
    def weights(self) -> int:
        """Elements of all matrices."""
        return sum(self.gates * self.width * (given + self.width) for given in self.inputs)

    @property
    def passes(self) -> int:
        """Over a state, of what is by element: gates of both products, kept ones, states."""
        return 3 * self.gates + 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Shape of a recurrence over tokens: what a sequence keeps of it instead of keys and values."""

    heads: int
    key_dim: int
    value_dim: int
    """Of a head, whose state is a matrix of key_dim by value_dim."""
    channels: int
    """Of the convolution before it."""
    taps: int
    """Tokens that convolution sees, all but the newest of which are kept."""
    steps: float = 0.0
    """Chunks of a sample that one kernel takes one after the other; backward takes them twice."""
    recurrent: float = 0.0
    """Elements that this kernel reads and writes."""

    @property
    def state_elements(self) -> int:
        """Of all heads' matrices."""
        return self.heads * self.key_dim * self.value_dim

    @property
    def conv_elements(self) -> int:
        """Of the convolution's past."""
        return self.channels * (self.taps - 1)
