"""Pipelines of torch whose stages other ranks share: what they exchange, against real ranks."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.rayapi.shapes import prediction  # noqa: E402
from raysim.rayapi.unsupported import NotEmulatedError  # noqa: E402
from raysim.training.program import Kind  # noqa: E402
from tests.real.real_ranks import said_by  # noqa: E402
from tests.real.test_launched_scripts import PROGRAMS, launched  # noqa: E402
from tests.real.test_training_collectives import free_port  # noqa: E402
from tests.real.training_script_parts import machines  # noqa: E402

Exchanged = Counter[tuple[str, int]]


def exchanged(step: prediction.Prediction) -> dict[int, Exchanged]:
    """Of a step, by stage's first rank: kind and bytes of the whole, without norms of gradients."""
    found = {}
    for line in step.outcome.timelines:
        calls = [
            (op.call.op if op.kind == Kind.COLLECTIVE else op.kind.name.lower(), op.call.size_bytes)
            for op in line.program.ops
            if op.call and op.name != "gradient norm"
        ]
        found[line.program.rank] = Counter(calls)
    return found


def real_ranks(ranks: int, script: str, *words: str) -> tuple[dict[int, Exchanged], list[str]]:
    """The same, and what the ranks print themselves."""
    counts = Path(__file__).parent / "pipelined_steps.py"
    said = said_by(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
         "--master-port", str(free_port()), str(counts), str(PROGRAMS / script), *words],
        {**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    counted = [json.loads(line) for line in said if line.startswith("{")]
    found = {c["rank"]: Counter({(op, size): n for op, size, n in c["found"]}) for c in counted}
    return found, [line for line in said if not line.startswith("{")]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        pytest.param(4, "Schedule1F1B 2 1 4 sharded", marks=pytest.mark.exhaustive),
        (4, "Schedule1F1B 2 1 4 sharded blocks always"),
        pytest.param(4, "ScheduleLoopedBFS 2 2 4 sharded blocks", marks=pytest.mark.exhaustive),
        (4, "ScheduleZBVZeroBubble 2 2 4 sharded blocks bf16"),
        pytest.param(
            8, "ScheduleGPipe 2 1 4 sharded blocks bf16 hybrid", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_sharded_stages_exchange_what_those_of_real_ranks_do(
    ranks: int, words: str, predicted: list[prediction.Prediction]
) -> None:
    expected, said = real_ranks(ranks, "stages.py", *words.split())
    spec = machines(ranks)
    asked = ("torchrun", "--nproc-per-node", str(ranks), "stages.py", *words.split())
    lines, _ = launched(*asked, spec=spec)
    assert sorted(lines) == sorted(said)
    ours = exchanged(predicted[-1])
    assert len(ours) == 2
    assert all(expected[rank] == counted for rank, counted in ours.items())


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_three_dimensions_exchange_what_real_ranks_do(
    predicted: list[prediction.Prediction],
) -> None:
    words = ["--flavor", "debug", "--clip", "1.0"]
    expected, said = real_ranks(8, "llama_3d.py", *words)
    lines, report = launched(
        "torchrun", "--nproc-per-node", "8", "llama_3d.py", *words, spec=machines(8)
    )
    assert sorted(lines) == sorted(said)  # elements that each rank holds among them
    ours = exchanged(predicted[-1])
    assert all(expected[rank] == counted for rank, counted in ours.items())
    assert ours[0]["all_reduce", 4 * 64] == 4  # norms: two a block, once, not per micro-batch
    mesh = predicted[-1].plan.mesh
    assert (mesh.pp, mesh.dp, mesh.tp) == (2, 2, 2)
    assert report.metrics["step_seconds"] > 0


def whole_bytes(step: prediction.Prediction, until: int) -> int:
    """Of weights of the first stage that are not sharded, ahead of one of its operations."""
    program = step.outcome.timelines[0].program
    changes = zip(program.memory, program.memory_at, strict=True)
    return sum(
        change.delta_bytes for change, at in changes
        if change.category == "gathered_parameter" and at < until
    )  # fmt: skip


def test_weights_stay_whole_between_micro_batches_unless_forwards_free_them(
    predicted: list[prediction.Prediction],
) -> None:
    asked = ("torchrun", "--nproc-per-node", "4", "stages.py", "Schedule1F1B", "2", "1", "4")
    found = []
    for more in ((), ("always",)):
        launched(*asked, "sharded", "blocks", *more, spec=machines(4))
        ops = predicted[-1].outcome.timelines[0].program.ops
        backward = next(i for i, op in enumerate(ops) if op.category == "backward")
        second = next(i for i, op in enumerate(ops) if op.category == "forward" and i > backward)
        found.append([whole_bytes(predicted[-1], at) for at in (backward, second, len(ops))])
    root, block, table = 4 * 32, 4 * (2 * 4 * 32 * 32 + 7 * 32), 4 * 32 * 1000
    whole = root + 4 * block + table
    assert found[0] == [whole, whole, 0]
    # The last block is gathered for its backward, and the one before it; backwards free nothing.
    assert found[1] == [root + block, whole, 0]


def test_an_evaluation_takes_the_time_of_its_forwards(
    predicted: list[prediction.Prediction],
) -> None:
    asked = ("torchrun", "--nproc-per-node", "8", "llama_3d.py", "--flavor", "debug", "--times")
    without, _ = launched(*asked, spec=machines(8))
    with_it, _ = launched(*asked, "--validate", spec=machines(8))
    first, second = (
        next(float(line.split()[1]) for line in lines if line.startswith("took"))
        for lines in (without, with_it)
    )
    step = predicted[-1].step_ns * 1e-9
    assert 0.1 * step < (second - first) / 3 < 0.6 * step


BLOCKS_ALONE = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("pp", "dp"))
rank, group = mesh["pp"].get_local_rank(), mesh.get_group("pp")
part = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
WRAP
stage = PipelineStage(part, rank, 2, torch.device("cuda"), group=group)
schedule = Schedule1F1B(stage, 2, loss_fn=torch.nn.functional.mse_loss)
x = torch.rand(4, 8, device="cuda")
schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank else {}))
"""


@pytest.mark.parametrize(
    ("wrap", "named"),
    [
        ("fully_shard(part[0], mesh=mesh['dp'])", "blocks alone are sharded"),
        ("part = FullyShardedDataParallel(part)", "FullyShardedDataParallel around a stage"),
        ("fully_shard(part)", "stages over 4 of 4 ranks"),
        ("part = fully_shard(part, mesh=mesh['dp']) if rank else part", "wrapped differently"),
    ],
)
def test_what_torchs_stages_do_not_know_is_refused_by_name(
    wrap: str, named: str, tmp_path: Path
) -> None:
    script = tmp_path / "blocks.py"
    script.write_text(BLOCKS_ALONE.replace("WRAP", wrap))
    with pytest.raises(NotEmulatedError, match=named):
        launched("torchrun", "--nproc-per-node", "4", str(script), spec=machines(4))
