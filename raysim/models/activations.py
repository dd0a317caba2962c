"""What each activation of ``transformers.activations.ACT2FN`` costs when run eagerly.

Some are one fused kernel (``torch.nn.functional.gelu``); others are a line of Python, one kernel
and often one saved tensor per arithmetic operation. Counts follow ``transformers/activations.py``;
passes are elements read plus written per element of input.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """Cost of one pointwise nonlinearity."""

    cls: str
    kernels: int = 1
    passes: float = 2
    kernels_backward: int = 1
    passes_backward: float = 3
    saves_input: bool = True
    saves_output: bool = False
    """Its derivative is computed from the output (relu, tanh, sigmoid)."""
    temporaries: int = 0
    """Further tensors of the input's size kept for backward."""
    power: bool = False
    """Takes ``torch.pow`` of the input, which autocast does in fp32."""


_FROM_OUTPUT = {"saves_input": False, "saves_output": True}
_GELU = Activation(cls="GELUActivation")

ACTIVATIONS: dict[str, Activation] = {
    "gelu": _GELU,
    "gelu_pytorch_tanh": Activation(cls="GELUTanh"),
    # half of x, times one plus the tanh of a cubic in x: seven intermediate results
    "gelu_new": Activation(
        cls="NewGELUActivation", kernels=8, passes=18, kernels_backward=11, passes_backward=28,
        temporaries=3, power=True,
    ),
    # the same formula in Horner's form
    "gelu_fast": Activation(
        cls="FastGELUActivation", kernels=9, passes=21, kernels_backward=13, passes_backward=36,
        temporaries=6,
    ),
    # An autograd function of its own, which keeps only its input: BloomGelu.
    "bloom_gelu": Activation(
        cls="BloomGelu", kernels=9, passes=21, kernels_backward=18, passes_backward=44,
    ),
    "quick_gelu": Activation(
        cls="QuickGELUActivation", kernels=3, passes=7, kernels_backward=5, passes_backward=14,
        temporaries=1,
    ),
    "silu": Activation(cls="SiLUActivation"),
    "swish": Activation(cls="SiLU"),
    "mish": Activation(cls="MishActivation"),
    "relu": Activation(cls="ReLU", **_FROM_OUTPUT),
    # what relu keeps, and square needs, is not what comes out
    "relu2": Activation(
        cls="ReLUSquaredActivation", kernels=2, passes=4, kernels_backward=4, passes_backward=10,
        saves_input=False, temporaries=1,
    ),
    "relu6": Activation(cls="ReLU6"),
    "leaky_relu": Activation(cls="LeakyReLU"),
    "tanh": Activation(cls="Tanh", **_FROM_OUTPUT),
    "sigmoid": Activation(cls="Sigmoid", **_FROM_OUTPUT),
    "linear": Activation(
        cls="LinearActivation", kernels=0, passes=0, kernels_backward=0, passes_backward=0,
        saves_input=False,
    ),
}  # fmt: skip
