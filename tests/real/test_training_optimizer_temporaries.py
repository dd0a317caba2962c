"""What torch's optimizers hold while they step over all tensors at once, against torch itself."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from raysim.perf.optimizer import SPARSE, optimizer_key  # noqa: E402
from raysim.rayapi.shapes.optimizers import optimizer_of  # noqa: E402
from raysim.tracing.storages import local_part  # noqa: E402
from raysim.training.states.optimizer import step_temporaries  # noqa: E402

SIZES = (64 * 64, 64)


class Watch(TorchDispatchMode):
    """Bytes of what was made since and is alive, and their most."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.most = 0
        self.before: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.numel() > 1:
                storage = local_part(t).untyped_storage()
                key = storage._cdata
                if key not in self.live and key not in self.before:
                    self.live[key] = storage.nbytes()
                    weakref.finalize(storage, self.live.pop, key)
        self.most = max(self.most, sum(self.live.values()))
        return out


CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1}),
    ("AdamW", {}),
    ("Adagrad", {}),
    ("Adagrad", {"weight_decay": 0.1}),
    ("Adadelta", {}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "weight_decay": 0.1}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("Adamax", {}),
    ("ASGD", {}),
    ("Rprop", {}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_step_holds_as_much_as_torchs(name: str, options: dict[str, Any]) -> None:
    parameters = [torch.nn.Parameter(torch.ones(64, 64)), torch.nn.Parameter(torch.ones(64))]
    optimizer = getattr(torch.optim, name)(parameters, foreach=True, **options)
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()  # makes states
    states = [
        v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)
    ]
    watch = Watch()
    held = [*parameters, *(p.grad for p in parameters), *states]
    watch.before = {t.untyped_storage()._cdata for t in held}
    with watch:
        optimizer.step()
    ours = step_temporaries(optimizer_of(optimizer), [4.0 * size for size in SIZES])
    # Rprop's ``where`` has one tensor more, of the largest parameter.
    assert sum(ours) == pytest.approx(watch.most, rel=0.01 if name != "Rprop" else 0.6)


def test_a_loop_holds_the_largest_tensors_alone() -> None:
    parameters = [torch.nn.Parameter(torch.ones(64, 64)), torch.nn.Parameter(torch.ones(64))]
    optimizer = torch.optim.Adagrad(parameters, foreach=False)
    ours = step_temporaries(optimizer_of(optimizer), [4.0 * size for size in SIZES])
    assert sum(ours) == 2 * 4 * 64 * 64


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", ["SparseAdam", "Adagrad", "SGD"])
def test_a_step_of_sparse_gradients_holds_as_much_as_torchs(name: str) -> None:
    table = torch.nn.Embedding(512, 64, sparse=True)
    optimizer = getattr(torch.optim, name)(table.parameters(), lr=0.1)
    for _ in range(2):  # the first one makes states
        optimizer.zero_grad()
        table(torch.arange(0, 512, 2)).sum().backward()
        watch = Watch()
        states = tree_leaves(list(optimizer.state.values()))
        held = [t for t in (table.weight, table.weight.grad, *states) if torch.is_tensor(t)]
        watch.before = {local_part(t).untyped_storage()._cdata for t in held}
        with watch:
            optimizer.step()
    family = optimizer_key(optimizer_of(optimizer).type)
    rows_bytes = 256 * 64 * 4
    # Within the mask of a state there are its rows too, which are not heard of.
    assert SPARSE[family].held in (n := round(watch.most / rows_bytes), n + 1)
