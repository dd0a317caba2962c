"""transformers' own way to ask for tf32, in a process of its own: torch's flags are its globals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("transformers")

SCRIPT = """
import torch
from transformers import TrainingArguments

TrainingArguments(output_dir="out", tf32=True, report_to=[])
print("products in", torch.backends.cuda.matmul.fp32_precision)
"""


def test_training_arguments_may_ask_for_tf32(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "one.yaml").write_text("nodes: 1\nnode: a3-highgpu-1g\n", encoding="utf-8")
    start = "import sys; from raysim.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", start, "run", "--cluster", "one.yaml", "--no-trace", "python",
         "script.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "products in tf32" in done.stdout, done.stdout + done.stderr
