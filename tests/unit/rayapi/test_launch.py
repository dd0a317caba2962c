"""Command lines of launchers: what they ask for, and what their processes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.errors import ScenarioError
from raysim.rayapi.launch.commands import Command, read_command
from raysim.rayapi.launch.hosts import Machine, arguments, environment, hosts_of, seats_of
from raysim.scenario.launchers import command_of


def read(line: str) -> Command:
    return read_command(line.split())


def machines(*gpus: int) -> list[Machine]:
    return [Machine(node_id=i, gpus=n, vcpus=16, cores=8) for i, n in enumerate(gpus)]


def slots(line: str, *gpus: int) -> list[tuple[int, tuple[int, ...]]]:
    """Node and GPUs of each host."""
    found = hosts_of(read(line), machines(*gpus))
    return [(host.machine.node_id, host.slots) for host in found]


def test_what_follows_the_script_is_the_script_s() -> None:
    found = read("deepspeed --num_gpus 4 train.py --num_gpus 2 -m x")
    assert (found.script, found.args) == ("train.py", ("--num_gpus", "2", "-m", "x"))
    assert found.words == ("deepspeed", "--num_gpus", "4")
    assert found.per_node == 4


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deepspeed train.py", [(0, (0, 1, 2, 3)), (1, (0, 1, 2, 3))]),
        ("deepspeed --num_nodes 1 train.py", [(0, (0, 1, 2, 3))]),
        ("deepspeed --num_gpus=2 train.py", [(0, (0, 1)), (1, (0, 1))]),
        ("deepspeed -i worker-1:1,3 train.py", [(1, (1, 3))]),
        ("deepspeed --include worker-0@worker-1:0 train.py", [(0, (0, 1, 2, 3)), (1, (0,))]),
        ("deepspeed --exclude worker-0 train.py", [(1, (0, 1, 2, 3))]),
        ("deepspeed -e worker-1:0 train.py", [(0, (0, 1, 2, 3)), (1, (1, 2, 3))]),
        ("torchrun train.py", [(0, (0,))]),
        ("torchrun --nnodes 2 --nproc_per_node=gpu train.py",
         [(0, (0, 1, 2, 3)), (1, (0, 1, 2, 3))]),
        ("torchrun --nnodes 1:8 --nproc-per-node 3 train.py", [(0, (0, 1, 2)), (1, (0, 1, 2))]),
        ("python -m torch.distributed.run --nproc-per-node auto train.py", [(0, (0, 1, 2, 3))]),
        ("python -u train.py", [(0, (0,))]),
    ],
)  # fmt: skip
def test_hosts_and_their_gpus(line: str, expected: list[tuple[int, tuple[int, ...]]]) -> None:
    assert slots(line, 4, 4) == expected


def test_nodes_without_gpus_are_used_where_there_are_no_others() -> None:
    assert slots("deepspeed train.py", 0, 2) == [(1, (0, 1))]
    assert slots("torchrun --nproc-per-node 2 train.py", 0, 0) == [(0, (0, 1))]
    assert slots("torchrun --nproc-per-node cpu train.py", 4) == [(0, tuple(range(16)))]


def test_a_hostfile_names_nodes_in_order(tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text("# two\nalpha slots=4\nbeta slots=2\n")
    assert slots(f"deepspeed -H {file} train.py", 4, 4) == [(0, (0, 1, 2, 3)), (1, (0, 1))]
    assert slots(f"deepspeed -H {file} -i beta train.py", 4, 4) == [(1, (0, 1))]
    assert slots("deepspeed -H /job/on_the_cluster train.py", 1, 1) == [(0, (0,)), (1, (0,))]
    file.write_text("alpha 4\n")
    with pytest.raises(ScenarioError, match=r"hostfile:1 .*expected HOST slots=N"):
        slots(f"deepspeed -H {file} train.py", 4)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("deepspeed --num_gpus 8 train.py", "localhost has 4 GPUs, not 8"),
        ("deepspeed --num_nodes 2 train.py", "--num_nodes 2, and the cluster has 1"),
        ("deepspeed -i localhost:9 train.py", "No slot '9' specified on host 'localhost'"),
        ("deepspeed -i elsewhere train.py", "Hostname 'elsewhere' not found"),
        ("deepspeed -e localhost train.py", "nothing is left"),
        ("torchrun --nnodes 2 train.py", "waits for 2 nodes, and the cluster has 1 with GPUs"),
        ("torchrun --nproc-per-node 5 train.py", "would start 5 processes on a node of 4 GPUs"),
    ],
)
def test_what_the_cluster_has_not_is_refused(line: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        slots(line, 4)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("deepspeed --num_gpus x train.py", "invalid int value"),
        ("deepspeed", "the following arguments are required: SCRIPT"),
        ("deepspeed --colour red train.py", "deepspeed: "),
        ("deepspeed -i a -e b train.py", "mutually exclusive"),
        ("deepspeed -i a --num_gpus 2 train.py", "Cannot specify num_nodes/gpus with"),
        ("deepspeed --launcher mpich train.py", "--launcher mpich is not emulated"),
        ("deepspeed --no_python train.sh", "--no_python is not emulated"),
        ("torchrun --nnodes two train.py", 'not in "MIN:MAX" format'),
        ("torchrun --nproc-per-node many train.py", "Unsupported nproc_per_node value: many"),
        ("torchrun --virtual-local-rank train.py", "--virtual-local-rank is not emulated"),
        ("accelerate config", "Emulated instead: accelerate launch"),
        ("python -c pass", "expected a script"),
        ("mpirun -n 2 train.py", "is no launcher"),
    ],
)
def test_command_lines_that_are_refused(line: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        read(line)


def test_a_module_is_found_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    assert read("torchrun -m pkg.train").file(tmp_path) == tmp_path / "pkg" / "train.py"
    assert read("python -m pkg").file(tmp_path) == tmp_path / "pkg" / "__main__.py"


def test_a_double_dash_behind_a_module_is_no_argument() -> None:
    """As argparse has it, in ``torch/distributed/run.py`` too."""
    found = read("torchrun --nproc-per-node 8 -m app.train -- --depth=12")
    assert found.words == ("torchrun", "--nproc-per-node", "8", "-m")
    assert (found.script, found.args) == ("app.train", ("--depth=12",))


def test_flags_of_a_script_may_look_like_its_launcher_s() -> None:
    """``torchrun -m scripts.base_train -- --run=dummy``, where torchrun has ``--run-path``."""
    found = command_of("torchrun --standalone -m", "scripts/base_train.py", ["--run=dummy"])
    assert (found.script, found.args) == ("scripts.base_train", ("--run=dummy",))


def test_deepspeed_tells_a_rank_its_number_by_a_flag_unless_it_is_told_not_to() -> None:
    seats = list(seats_of(hosts_of(read("deepspeed train.py"), machines(2))))
    line = "train.py --local_rank=1 -x"
    assert arguments(read("deepspeed train.py -x"), Path("train.py"), seats[1]) == line.split()
    quiet = read("deepspeed --no_local_rank train.py -x")
    assert arguments(quiet, Path("train.py"), seats[1]) == ["train.py", "-x"]


@pytest.mark.parametrize(
    ("flags", "address", "port"),
    [
        ("", "localhost", "29500"),  # a free port, there
        ("--standalone", "localhost", "29500"),
        ("--master-port 1234", "127.0.0.1", "1234"),
        ("--nnodes 2 --master-addr 10.1.2.3", "10.1.2.3", "29500"),
        ("--nnodes 2 --rdzv-endpoint 10.1.2.3:99", "10.1.2.3", "99"),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 10.9.9.9:99", "10.0.0.1", "29500"),
    ],
)
def test_where_ranks_of_torchrun_meet(flags: str, address: str, port: str) -> None:
    command = read(f"torchrun {flags} train.py")
    seat = next(iter(seats_of(hosts_of(command, machines(1, 1)))))
    found = environment(command, seat, 0)
    assert found["MASTER_PORT"] == port
    if not address.startswith("10.0."):
        assert found["MASTER_ADDR"] == address
    else:  # the first node's own
        assert found["MASTER_ADDR"] not in ("10.9.9.9", "127.0.0.1", "localhost")


@pytest.mark.parametrize(
    ("line", "threads"),
    [
        ("deepspeed train.py", None),
        ("deepspeed --bind_cores_to_rank train.py", "2"),
        ("deepspeed --num_gpus 3 --bind_cores_to_rank train.py", "2"),
        ("deepspeed --bind_cores_to_rank --bind_core_list 0,2-5,7 train.py", "1"),
        ("torchrun --nproc-per-node 4 train.py", "1"),
        ("torchrun train.py", None),
        ("python train.py", None),
    ],
)
def test_openmp_threads_are_the_launcher_s(line: str, threads: str | None) -> None:
    """As read in ``launch.py``, ``utils/numa.py`` and ``torch/distributed/run.py``."""
    command = read(line)
    seat = next(iter(seats_of(hosts_of(command, machines(4)))))
    assert environment(command, seat, 0).get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    ("listed", "said"),
    [("1,x", "'1,x' is not such as 0,2-5"), ("0-2", "At least one core needs to be assigned")],
)
def test_cores_that_do_not_do_are_refused(listed: str, said: str) -> None:
    command = read(f"deepspeed --bind_cores_to_rank --bind_core_list {listed} train.py")
    seat = next(iter(seats_of(hosts_of(command, machines(4)))))
    with pytest.raises(ScenarioError, match=said):
        environment(command, seat, 0)


def test_fabric_run_is_torchrun_with_its_flags_in_the_environment() -> None:
    found = read("fabric run --accelerator=gpu train.py --devices=0,2 --epochs 1")
    assert (found.script, found.args, found.per_node) == ("train.py", ("--epochs", "1"), 2)
    again = read(" ".join((*found.words, found.script, *found.args)))  # as a scenario keeps it
    assert again == found
    (host,) = hosts_of(found, machines(4))
    told = environment(found, next(seats_of([host])), 0)
    assert (told["LT_DEVICES"], told["LT_ACCELERATOR"], told["WORLD_SIZE"]) == ("0,2", "gpu", "2")
    assert "LT_STRATEGY" not in told
    assert told["MASTER_PORT"] == "29400"
    assert slots("fabric run train.py", 4) == [(0, (0,))]
    two = slots("fabric run --devices -1 --num-nodes 2 train.py", 2, 2)
    assert two == [(0, (0, 1)), (1, (0, 1))]
