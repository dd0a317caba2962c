"""A script's DeepSpeed configuration is refused where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysim.rayapi.deepspeed.settings import DeepSpeedConfigError, read

CALL = "\nread(config, None, data_parallel=2, stages=1, client=None, say=print)\n"
LITERAL = """\
config = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 3, "overlap_com": True},
}"""
BUILT = """\
config = dict(train_micro_batch_size_per_gpu=2)
config["zero_optimization"] = dict(stage=3, overlap_com=True)"""
IN_FILE = 'config = "ds.json"'


@pytest.mark.parametrize(
    ("script", "where"),
    [(LITERAL, "train.py:3:39"), (BUILT, "train.py:3:1"), (IN_FILE, "ds.json:3:23")],
)
def test_it_is_told_by_file_and_line(in_tmp: Path, script: str, where: str) -> None:
    """Both dictionaries were `config:1:1`; a JSON with comments was not read."""
    Path("ds.json").write_text(
        '{ // mine\n"train_micro_batch_size_per_gpu": 2,\n"zero_optimization": {"overlap_com": 1}}'
    )
    Path("train.py").write_text(script + CALL)
    names: dict[str, Any] = {"read": read}
    with pytest.raises(DeepSpeedConfigError, match=f"^{where}   unknown key 'overlap_com'"):
        exec(compile(script + CALL, str(in_tmp / "train.py"), "exec"), names)
