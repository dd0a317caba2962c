"""Messages between two ranks: what they take, what they bring, pipelines by hand made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("torch")

from raysim.perf.collectives import GroupShape, collective  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402
from tests.real.training_script_parts import machines  # noqa: E402

TIMED = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
x, y = (torch.empty(2**24, device="cuda") for _ in range(2))
pair = dist.new_group([1, 2])


def alone():
    if rank == 1:
        dist.send(x, group=pair, group_dst=1)
    elif rank == 2:
        assert dist.recv(y, group=pair, group_src=0) == 1


def ring():
    ops = [dist.P2POp(dist.isend, x, (rank + 1) % world), dist.P2POp(dist.irecv, y, rank - 1 & 3)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def late():
    if rank == 1:
        time.sleep(0.5)
        dist.isend(x, dst=2).wait()
    elif rank == 2:
        work = dist.irecv(y, src=1)
        time.sleep(0.2)
        assert not work.is_completed()
        work.wait()


def known():
    counted = torch.tensor([rank, 7], device="cuda")
    dist.send(counted, rank + 1) if rank % 2 == 0 else dist.recv(counted, rank - 1)
    assert counted.tolist() == [rank - rank % 2, 7]


def objects():
    found, given = [None] * world, [None]
    dist.gather_object(rank, found if rank == 3 else None, dst=3)
    assert rank != 3 or found == [0, 1, 2, 3]
    dist.scatter_object_list(given, [f"for {i}" for i in range(world)] if rank else None, src=1)
    assert given == [f"for {rank}"]


taken = []
for call in (alone, ring, late, known, objects):
    dist.barrier()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    taken.append(time.perf_counter() - began)
if rank == 2:
    print(*taken[:3])
"""


def test_a_message_begins_when_both_have_come_and_takes_nccls_time(tmp_path: Path) -> None:
    script = tmp_path / "timed.py"
    script.write_text(TIMED)
    lines, _ = launched("torchrun", "--nproc-per-node", "4", str(script), spec=machines())
    shape = GroupShape.on(machines().groups[0].node, ranks=2)
    seconds = collective("send_recv", 4 * 2**24, shape).seconds
    taken = list(map(float, lines[-1].split()))
    assert taken == pytest.approx([seconds, seconds, 0.5 + seconds], abs=2e-5)


def test_a_pipeline_by_hand_waits_as_1f1b_does_and_keeps_what_is_under_way() -> None:
    """(m + p - 1) micro-batches' time in all; rank r keeps p - r of them, each 4 inputs."""
    stages, taken, held = 4, dict[int, float](), dict[int, int]()
    for batches in (4, 8):
        words = ["--nproc-per-node", str(stages), "stages_by_hand.py", str(batches)]
        lines, _ = launched("torchrun", *words, spec=machines())
        for rank, seconds, size in (line.split() for line in lines if len(line.split()) == 3):
            taken[batches], held[int(rank)] = float(seconds), int(size)
    each = (taken[8] - taken[4]) / 4
    assert taken[8] == pytest.approx((8 + stages - 1) * each, rel=0.02)  # and the optimizer's
    kept = 4 * 2048 * 4096 * 4
    assert [held[0] - held[rank] for rank in (1, 2)] == [kept, 2 * kept]


SUBGROUPS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
mine, every = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
assert len(every) == 2 and dist.get_process_group_ranks(mine) == [rank % 2, rank % 2 + 2]
assert dist.get_global_rank(mine, 1) == rank % 2 + 2 and dist.get_rank(mine) == rank // 2
near, _ = dist.new_subgroups(2)
assert dist.get_process_group_ranks(near) == [rank // 2 * 2, rank // 2 * 2 + 1]
whole, _ = dist.new_subgroups()
assert dist.get_world_size(whole) == 4
print("fine")
"""


def test_groups_of_some_ranks_by_enumeration(tmp_path: Path) -> None:
    script = tmp_path / "subgroups.py"
    script.write_text(SUBGROUPS)
    lines, _ = launched("torchrun", "--nproc-per-node", "4", str(script), spec=machines())
    assert lines == ["fine"] * 4
