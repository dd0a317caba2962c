"""A plain stack of ``torch.nn`` layers as a layer table: what a small PipelineModule is built from.

Every entry is one layer, ``Linear`` and ``ReLU`` apart, because that is what DeepSpeed's
PipelineModule partitions. A cross-entropy loss over the last output closes the stack.

Source of sizes: ``torch.nn.Linear`` saves its input for backward (the gradient of the weight),
``torch.nn.ReLU`` its output, ``cross_entropy`` the log-softmax of the logits.

Not modelled: in-place activations, convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence

from raysim.models.table import Body, Gemm, Layer, Model, Module, Operator, Parameter, Saved

LinearShape = tuple[int, int]
"""``(in_features, out_features)``."""


def _linear(shape: LinearShape, *, after_relu: bool) -> Body:
    """``torch.nn.Linear`` with bias: one GEMM with the bias added in its epilogue.

    After a ReLU its input is that layer's saved output: one storage, counted there.
    """
    inputs, outputs = shape
    operator = Operator(
        name="linear",
        kind="gemm",
        flops=2.0 * inputs * outputs,
        moved=float(inputs + outputs),
        gemm=Gemm(rows=1.0, n=outputs, k=inputs),
        saves=() if after_relu else (Saved(name="input", numel=float(inputs)),),
        output=float(outputs),
        # backward: input gradient, weight gradient, and the sum over rows for the bias
        kernels_backward=3,
    )
    parameters = (
        Parameter(name="weight", shape=(outputs, inputs)),
        Parameter(name="bias", shape=(outputs,)),
    )
    return Body(
        modules=(Module(name="", cls="Linear", operators=(operator,), parameters=parameters),)
    )


def _relu(width: int) -> Body:
    """``torch.nn.ReLU``: reads and writes one tensor; backward reads gradient and output."""
    operator = Operator(
        name="relu",
        kind="elementwise",
        flops=float(width),
        moved=2.0 * width,
        moved_backward=3.0 * width,
        saves=(Saved(name="output", numel=float(width)),),
        output=float(width),
        kernels_backward=1,
    )
    return Body(modules=(Module(name="", cls="ReLU", operators=(operator,)),))


def _loss(width: int) -> Operator:
    """``cross_entropy``: log-softmax (kept for backward) and a gather of the labels' terms."""
    return Operator(
        name="loss",
        kind="loss",
        flops=5.0 * width,
        moved=2.0 * width + 1,
        moved_backward=2.0 * width,
        saves=(Saved(name="log_softmax", numel=float(width)),),
        output=1.0,
        kernels=2,
        kernels_backward=2,
    )


def build(layers: Sequence[LinearShape | str], *, name: str = "sequential") -> Model:
    """The layer table of ``[(128, 256), "relu", ...]``.

    Raises
    ------
    ValueError
        A layer's inputs are not the outputs of the one before, or the first layer has no width.
    """
    table: list[Layer] = []
    width: int | None = None
    for i, layer in enumerate(layers):
        if isinstance(layer, str):
            if layer != "relu":
                raise ValueError(f"layer {i}: unknown layer {layer!r}; known: linear, relu")
            if width is None:
                raise ValueError("layer 0: relu cannot be first, its width is unknown")
            body, cls = _relu(width), "ReLU"
        else:
            if width not in (None, layer[0]):
                raise ValueError(
                    f"layer {i}: takes {layer[0]} inputs but layer {i - 1} gives {width}"
                )
            after_relu = i > 0 and layers[i - 1] == "relu"
            body, cls, width = _linear(layer, after_relu=after_relu), "Linear", layer[1]
        table.append(Layer(name=str(i), kind="block", cls=cls, body=body, output=float(width)))
    if width is None:
        raise ValueError("no layers")
    table[-1] = _with_loss(table[-1], width)
    return Model(
        name=name,
        model_type="sequential",
        architecture="Sequential",
        layers=tuple(table),
        seq_len=1,
        sample_unit="samples",
    )


def _with_loss(last: Layer, width: int) -> Layer:
    """The last layer with the loss behind it; the loss is no layer of its own in DeepSpeed."""
    modules = (
        *last.body.modules,
        Module(name="loss", cls="CrossEntropyLoss", operators=(_loss(width),)),
    )
    return Layer(
        name=last.name, kind="head", cls=last.cls, body=Body(modules=modules), output=last.output
    )
