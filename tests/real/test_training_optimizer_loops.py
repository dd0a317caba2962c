"""Which of torch's optimizers a script gets: fused, ``foreach``, or a loop over tensors."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from raysim.rayapi.shapes.optimizers import optimizer_of  # noqa: E402

pytestmark = pytest.mark.real


class Loops(TorchDispatchMode):  # type: ignore[misc]
    """Whether a step calls operators of single tensors or of lists."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad"])
def test_fused_false_is_a_loop_as_foreach_false_is(name: str) -> None:
    """``if fused is None and foreach is None``: else torch does not choose ``foreach``."""
    parameter = torch.nn.Parameter(torch.ones(4))

    def made(**options: Any) -> Any:
        return getattr(torch.optim, name)([parameter], lr=0.1, **options)

    assert optimizer_of(made()).foreach
    assert optimizer_of(made(foreach=True)).foreach
    for options in ({"foreach": False}, {"fused": False}):
        assert not optimizer_of(made(**options)).foreach
        parameter.grad = torch.ones(4)
        with Loops() as seen:
            made(**options).step()
        assert not any("_foreach" in called for called in seen.names)
    assert optimizer_of(made(fused=True)).fused


def test_an_optimizer_without_a_fused_kernel_takes_all_tensors() -> None:
    assert optimizer_of(torch.optim.RMSprop([torch.nn.Parameter(torch.ones(4))])).foreach
