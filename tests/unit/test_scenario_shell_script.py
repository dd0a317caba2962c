"""Shell scripts that start training: which command line raysim plays, or why it cannot."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from raysim.errors import ScenarioError
from raysim.scenario.shell_script import launch_of

SLURM = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:h100:8\n#SBATCH -J tune\n"
CASES = {
    "sbatch with a rendezvous": (
        f"""{SLURM}#SBATCH --ntasks-per-node=1  # torchrun does the rest
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
module load cuda
srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=${{SLURM_GPUS_ON_NODE}} \\
  --rdzv_id=$SLURM_JOB_ID --rdzv_endpoint=$MASTER_ADDR:29500 \\
  train.py -c $SLURM_JOB_NAME 2>&1 | tee log
""",
        """torchrun --nnodes=4 --nproc_per_node=8 --rdzv_id=1 --rdzv_endpoint=node-0:29500
        train.py -c tune""",
    ),
    "bash -c under srun": (
        SLURM + 'srun bash -c "torchrun --nnodes 4 --node_rank \\$SLURM_PROCID train.py"',
        "torchrun --nnodes 4 --node_rank 0 train.py",
    ),
    "arrays and sums": (
        """GPUS=4
ARGS=(
  --lr 1e-4   # slow
  --layers $((GPUS * 2))
)
pip install -q torch
python -m pip list && torchrun --nproc-per-node $GPUS t.py "${ARGS[@]}"
""",
        "torchrun --nproc-per-node 4 t.py --lr 1e-4 --layers 8",
    ),
    "words in variables": (
        """LAUNCHER="accelerate launch --num_machines 2 --machine_rank $RANK"
export NCCL_DEBUG=INFO
NCCL_IB_DISABLE=0 $LAUNCHER train.py > log.txt 2>&1
""",
        "accelerate launch --num_machines 2 --machine_rank 0 train.py",
    ),
    "prepared before": (
        "python prepare.py\ndeepspeed --num_gpus 8 train.py --deepspeed ds.json $@",
        "deepspeed --num_gpus 8 train.py --deepspeed ds.json --epochs 2",
    ),
}


def written(folder: Path, text: str) -> Path:
    path = folder / "job.sbatch"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", CASES)
def test_the_command_that_trains(name: str, tmp_path: Path) -> None:
    text, words = CASES[name]
    assert launch_of(written(tmp_path, text), ["--epochs", "2"]) == shlex.split(words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo nothing\n", "starts no training"),
        ("torchrun a.py\ntorchrun b.py", r"several programs \(lines 1, 2\).*raysim run torchrun a"),
        ("\ntorchrun --nproc-per-node $GPUS a.py", r"2.*'\$GPUS' rests on \$GPUS"),
        ("torchrun --nproc-per-node $(nvidia-smi -L | wc -l) a.py", "a command's output"),
        (
            SLURM + "#SBATCH --ntasks-per-node=8\nsrun python train.py --fast",
            "32 processes.*raysim run torchrun --nnodes 4 --nproc-per-node 8 train.py --fast",
        ),
    ],
)
def test_what_it_does_not_say_is_asked_for(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=said):
        launch_of(written(tmp_path, text))
