"""Tables with sparse gradients in training scripts: what they hold, and what torch refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.tracing import trace  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402
from tests.real.test_tracing_operators import Thrice  # noqa: E402

ROWS, WIDTH, BATCH = 1_000_000, 64, 2048
TABLE_BYTES = ROWS * WIDTH * 4
SCRIPT = """
import json, sys, torch
from torch import nn
kind, sparse = sys.argv[1], sys.argv[2] == "sparse"
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(1_000_000, 64, mode="mean", sparse=sparse)
        self.head = nn.Linear(64, 1)
    def forward(self, x): return self.head(self.table(x))
model = Net().cuda()
if "LOCAL_RANK" in __import__("os").environ:
    torch.distributed.init_process_group()
    model = nn.parallel.DistributedDataParallel(model)
if kind == "SparseAdam":
    optimizers = [torch.optim.Adam(model.head.parameters()), torch.optim.SparseAdam(
        model.table.parameters())]
else:
    optimizers = [getattr(torch.optim, kind)(model.parameters(), lr=0.1)]
try:
    for _ in range(3):
        for o in optimizers: o.zero_grad()
        model(torch.randint(0, 1_000_000, (2048, 20), device="cuda")).mean().backward()
        for o in optimizers: o.step()
except RuntimeError as error:
    print(json.dumps(str(error)))
else:
    print(torch.cuda.max_memory_allocated())
"""


def played(folder: Path, *words: str, sparse: str = "sparse") -> tuple[Any, Any]:
    script = folder / "table.py"
    script.write_text(SCRIPT, encoding="utf-8")
    *starts, kind = words
    said, report = launched(*(starts or ["python"]), str(script), kind, sparse)
    return json.loads(said[0]), report


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_step_holds_rows_in_place_of_a_tables_gradient(tmp_path: Path) -> None:
    rows_bytes = BATCH * 20 * (WIDTH * 4 + 8)
    plain, _ = played(tmp_path, "SGD")
    assert TABLE_BYTES + rows_bytes < plain < 1.4 * TABLE_BYTES  # cuBLAS's workspaces are 65 MB
    for kind, states, held in (("SparseAdam", 2, 6), ("Adagrad", 1, 4)):
        found, _ = played(tmp_path, kind)
        assert found - plain == pytest.approx(states * TABLE_BYTES + held * rows_bytes, rel=0.01)
    dense, _ = played(tmp_path, "SGD", sparse="dense")
    assert dense - plain == pytest.approx(TABLE_BYTES - rows_bytes, rel=0.02)


def test_optimizers_and_nccl_refuse_sparse_gradients_as_in_torch(tmp_path: Path) -> None:
    p = torch.nn.Embedding(4, 2, sparse=True)
    p(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError) as error:
        torch.optim.Adam(p.parameters()).step()
    assert played(tmp_path, "Adam")[0] == str(error.value)
    said, _ = played(tmp_path, "torchrun", "--nproc-per-node", "2", "SGD")
    assert "NCCL does not support all_reduce with sparse tensors" in said


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_the_table_says_how_many_rows_a_sparse_gradient_has(kind: str) -> None:
    net = torch.nn.Sequential(getattr(torch.nn, kind)(1000, 8, sparse=True), torch.nn.Linear(8, 4))
    at = torch.arange(12).view(4, 3)
    net(at).sum().backward()
    ((_, table),) = [
        (n, p) for n, p in trace(net, at, name="net").parameters() if p.shape == (1000, 8)
    ]
    assert table.sparse_rows * len(at) == net[0].weight.grad._nnz()


def test_looked_up_twice_a_table_has_the_rows_of_both() -> None:
    model = trace(Thrice(2, sparse=True), torch.zeros(2, 5, dtype=torch.int64), name="net")
    table = next(p for _, p in model.parameters())
    assert table.sparse_rows == 2 * 5
    operators = [o for layer in model.layers for o in layer.body.operators]
    assert not any(o.moved_fixed_backward for o in operators)  # zeros of the table's size
