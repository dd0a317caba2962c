"""Will it fit: the grid says what a run would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import raysim
from raysim.cli import main
from raysim.errors import ScenarioError
from raysim.planner.memory_grid import Grid, base_of, cells
from raysim.scenario.load import from_mapping

CONFIG = Path("scenarios/bert_mrpc_zero3/config.json")


def grid(**said):
    return Grid(config=CONFIG, node="dgx-a100-80-8", **said)


@pytest.fixture(scope="module")
def found():
    asked = grid(micro_batches=(1, 8))
    return {tuple(c[:4]): c for c in cells(base_of(asked), asked)}


def test_every_layout_once(found):
    assert len(found) == 8 * 2 * 2
    assert all(c.fits for c in found.values())


def test_sharding_offload_and_recomputation_never_take_more(found):
    for (stage, offload, checkpointing, micro), cell in found.items():
        if checkpointing == "none":
            recomputed = found[stage, offload, "full", micro]
            assert recomputed.gpu_bytes <= cell.gpu_bytes
        if micro == 1:
            assert cell.gpu_bytes <= found[stage, offload, checkpointing, 8].gpu_bytes
        if offload == "optimizer":
            kept = found[stage, "none", checkpointing, micro]
            assert cell.gpu_bytes <= kept.gpu_bytes
            assert cell.host_bytes > kept.host_bytes


def test_a_cell_is_what_a_run_of_it_says(found):
    for stage, offload in ((2, "none"), (3, "optimizer")):
        zero = {"stage": stage}
        if offload != "none":
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        scenario = from_mapping(
            {
                "name": "x", "cluster": {"node": "dgx-a100-80-8", "nodes": 1},
                "model": {"from": str(CONFIG.resolve())},
                "jobs": [{"train": {
                    "deepspeed": {
                        "bf16": {"enabled": True}, "zero_optimization": zero,
                        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                    },
                    "seq_len": 512, "micro_batch": 8, "gradient_accumulation_steps": 1, "steps": 1,
                }}],
            }
        )  # fmt: skip
        run = raysim.run(scenario, record=False).summary["memory"]["peak_bytes"]
        assert found[stage, offload, "none", 8].gpu_bytes == pytest.approx(run, rel=0.01)


def test_sequences_are_as_long_as_the_model_allows():
    assert base_of(grid()).spec.jobs[0].train.seq_len == 512
    assert base_of(grid(seq_len=128)).spec.jobs[0].train.seq_len == 128


def test_what_is_wrong_is_said():
    for wrong, said in (({"offloads": ("disk",)}, "disk"), ({"nodes": 0}, "nodes")):
        with pytest.raises(ScenarioError, match=said):
            base_of(grid(**wrong))


def test_a_guard_for_ci(capsys: pytest.CaptureFixture[str]):
    flags = [str(CONFIG), "--node", "dgx-a100-80-8", "--zero-stage", "3", "--micro-batch", "1"]
    assert main(["memory", *flags]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("6 of 6 layouts fit; least is 2.60 GiB: ZeRO 3, offload all")
    assert printed[1].startswith("GiB on the fullest GPU of 79.2 GiB: 8 GPUs of dgx-a100-80-8")
    assert " 108 M parameters, sequences of 512," in printed[1]
    assert len(printed) == 6
    assert main(["memory", *flags, "--fail-over", "1MiB"]) == 1
    capsys.readouterr()
    assert main(["memory", *flags, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 6
    assert {"gpu_bytes", "host_bytes", "fits"} <= set(rows[0])
    assert main(["memory", "absent.json"]) == 2
    assert "absent.json" in capsys.readouterr().err


def test_a_familys_own_positions_bound_the_length(tmp_path: Path):
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2}
    path = tmp_path / ("a-name-that-" * 12 + "is-long.json")
    path.write_text(json.dumps(config))
    assert base_of(Grid(config=path)).spec.jobs[0].train.seq_len == 1024


def test_why_nothing_can_be_and_what_a_quantised_checkpoint_is_taken_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path, bits = tmp_path / "config.json", {"quant_method": "fp8", "fmt": "e4m3"}
    path.write_text(json.dumps({"model_type": "nobodys", "hidden_size": 8}))
    assert main(["memory", str(path)]) == 2
    told = capsys.readouterr()
    assert "model_type: unknown 'nobodys'" in told.err
    assert told.out == "", "no table of dashes"
    tiny = {"model_type": "llama", "num_hidden_layers": 2, "quantization_config": bits}
    path.write_text(json.dumps(tiny))
    assert main(["memory", str(path), "--zero-stage", "0"]) == 0
    assert "quantization_config: fp8: taken as dequantized" in capsys.readouterr().out
    path.write_text(json.dumps(tiny | {"quantization_config": None}))
    assert main(["memory", str(path), "--zero-stage", "0"]) == 0
    assert "Note" not in capsys.readouterr().out
