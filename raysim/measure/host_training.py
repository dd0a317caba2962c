"""What a training step costs its host beside the layers, by how many parameters it has.

``host_training.csv``: an optimizer's step by kind and implementation, clipping, ``GradScaler``,
zeroing gradients, over so many tiny tensors; and the loops of transformers' Trainer, Accelerate and
Lightning around a model of one layer. Wall time with the device idle, one thread: kernels are tiny,
so that it is the host's. On a CPU it says what Python takes, and operators of a CPU.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from raysim.measure.machine import installed
from raysim.measure.session import Point, Session, Unavailable, repeat

TABLE = "host_training"
COLUMNS = ("device", "what", "implementation", "tensors")
TENSORS = (1, 16, 128, 512)
ELEMENTS = 256
OPTIMIZERS = {
    "AdamW": ("fused", "foreach", "loop"), "SGD": ("fused", "foreach", "loop"),
    "Adagrad": ("foreach", "loop"), "Adadelta": ("foreach", "loop"),
    "RMSprop": ("foreach", "loop"), "Adafactor": ("loop",), "transformers.Adafactor": ("loop",),
}  # fmt: skip
LOOP_STEPS = 60
"""Of a library's loop; two lengths are run, and what is alike in both does not count."""


def measure(session: Session) -> None:
    """Fill ``host_training.csv``."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with session.table(TABLE, COLUMNS, "wall time of one thread") as table:
        session.run(table, points(device, quick=session.quick))


def points(device: str, *, quick: bool) -> Iterator[Point]:
    """Optimizers, what is done to gradients, libraries' loops."""
    tensors = (1, 16) if quick else TENSORS
    for name, ways in OPTIMIZERS.items():
        for way in ways[:1] if quick else ways:
            for n in tensors:
                yield _point(device, name, way, n, _optimizer(device, name, way, n))
    for what, work in (
        ("clip_grad_norm_", _clip), ("zero_grad", _zero), ("GradScaler", _scaler),
    ):  # fmt: skip
        for n in tensors:
            yield _point(device, what, "", n, work(device, n))
    for what, loop in (("Trainer", _trainer), ("Accelerator", _accelerator), ("Lightning", _lit)):
        yield _point(device, what, "", 2, _loop(loop, device))


def _point(
    device: str, what: str, way: str, tensors: int, work: Callable[[float], Sequence[float]]
) -> Point:
    parameters = {"device": device, "what": what, "implementation": way, "tensors": tensors}
    return Point(parameters=parameters, measure=work)


def _parameters(device: str, tensors: int) -> list[Any]:
    import torch

    made = [torch.nn.Parameter(torch.randn(ELEMENTS, device=device)) for _ in range(tensors)]
    for p in made:
        p.grad = torch.randn_like(p)
    return made


def _made(device: str, name: str, way: str, tensors: int) -> Any:
    import torch

    parameters = _parameters(device, tensors)
    if name == "transformers.Adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False)
    kind = getattr(torch.optim, name)
    flags = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
    momentum = {"momentum": 0.9} if name == "SGD" else {}
    return kind(parameters, lr=1e-3, **momentum, **flags[way])


def _optimizer(
    device: str, name: str, way: str, tensors: int
) -> Callable[[float], Sequence[float]]:
    def work(allowed_s: float) -> Sequence[float]:
        try:
            optimizer = _made(device, name, way, tensors)
            optimizer.step()
        except (ImportError, RuntimeError) as error:
            raise Unavailable(str(error).partition("\n")[0]) from None
        return _times(device, optimizer.step, allowed_s)

    return work


def _times(device: str, work: Callable[[], object], allowed_s: float) -> list[float]:
    """Until ``work`` returns, the device having nothing to do before."""
    import torch

    def sample(_: int) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return repeat(sample, allowed_s, inner_most=1)


def _clip(device: str, tensors: int) -> Callable[[float], Sequence[float]]:
    def work(allowed_s: float) -> Sequence[float]:
        import torch

        parameters = _parameters(device, tensors)
        clip = torch.nn.utils.clip_grad_norm_
        return _times(device, lambda: clip(parameters, 1.0), allowed_s)

    return work


def _zero(device: str, tensors: int) -> Callable[[float], Sequence[float]]:
    """The gradients are there again each time."""

    def work(allowed_s: float) -> Sequence[float]:
        optimizer = _made(device, "SGD", "foreach", tensors)
        parameters = optimizer.param_groups[0]["params"]
        gradients = [p.grad for p in parameters]

        def sample(_: int) -> float:
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient
            began = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            return time.perf_counter() - began

        return repeat(sample, allowed_s, inner_most=1)

    return work


def _scaler(device: str, tensors: int) -> Callable[[float], Sequence[float]]:
    """Unscaling, the wait for what it found, the update of the scale: without the optimizer."""

    def work(allowed_s: float) -> Sequence[float]:
        import torch

        optimizer = _made(device, "SGD", "foreach", tensors)
        scaler = torch.amp.GradScaler(device, init_scale=1.0)
        scaler.scale(torch.ones((), device=device))
        optimizer.step = lambda *_a, **_k: None

        def step() -> None:
            scaler.step(optimizer)
            scaler.update()

        return _times(device, step, allowed_s)

    return work


def _loop(loop: Callable[[str, int], float], device: str) -> Callable[[float], Sequence[float]]:
    """Seconds of one step: a longer loop less a shorter one."""

    def work(_: float) -> Sequence[float]:
        try:
            loop(device, 5)  # imports, first kernels
        except ImportError as error:
            raise Unavailable(str(error)) from None
        short, long = LOOP_STEPS, 3 * LOOP_STEPS
        return [(loop(device, long) - loop(device, short)) / (long - short) for _ in range(3)]

    return work


def _data(samples: int) -> Any:
    import torch

    class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return samples

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"x": row, "labels": row}

    row = torch.zeros(4)
    return Rows()


def _network() -> Any:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            out = self.linear(x)
            return {"loss": (out - labels).square().mean(), "logits": out}

    return Net()


def _trainer(device: str, steps: int) -> float:
    """Seconds of transformers' Trainer."""
    if installed("accelerate") is None:
        raise ImportError("needs accelerate")
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=1, max_steps=steps, report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=device == "cpu",
        )  # fmt: skip
        trainer: Any = Trainer(model=_network(), args=arguments, train_dataset=_data(steps))
        trainer.remove_callback(PrinterCallback)
        began = time.perf_counter()
        trainer.train()
        return time.perf_counter() - began


def _accelerator(device: str, steps: int) -> float:
    """Seconds of a plain loop whose parts ``Accelerator.prepare`` has wrapped."""
    import torch
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=device == "cpu")
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters())
    loader: Any = torch.utils.data.DataLoader(_data(steps))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    began = time.perf_counter()
    for batch in loader:
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - began


def _lit(device: str, steps: int) -> float:
    """Seconds of Lightning's Trainer."""
    import lightning
    import torch

    net = _network()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, _: int) -> Any:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    trainer = lightning.Trainer(
        max_steps=steps, accelerator="gpu" if device == "cuda" else "cpu", devices=1, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    loader: Any = torch.utils.data.DataLoader(_data(steps))
    began = time.perf_counter()
    trainer.fit(Module(), loader)
    return time.perf_counter() - began
