"""fp8 training as users ask for it: Megatron's arguments, Accelerate's file, ``train.fp8``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.scenario.build import build_job
from raysim.scenario.load import Scenario, from_mapping
from raysim.training.settings.fp8 import Fp8Settings

MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": 1024, "tie_word_embeddings": False,
}  # fmt: skip
SCRIPT = """#!/bin/bash
torchrun pretrain_gpt.py --bf16 --use-distributed-optimizer \\
    --micro-batch-size 1 --global-batch-size 16 --seq-length 64 \\
    {fp8}
"""
ACCELERATE = """distributed_type: FSDP
mixed_precision: fp8
fsdp_config:
  fsdp_version: {version}
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: {efficient}
fp8_config:
  {fp8}
"""


def fp8(
    folder: Path, files: dict[str, str] | None = None, node: str = "hgx-h100-8", **train: Any
) -> Fp8Settings | None:
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    job = {"steps": 2} | train
    found = from_mapping(
        {
            "cluster": {"node": node, "nodes": 1},
            "model": {"from": MODEL},
            "jobs": [{"train": job}],
        },
        folder=folder,
    )
    assert isinstance(found, Scenario)
    return build_job(found).plan.fp8


def refused(folder: Path, *args: Any, **train: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        fp8(folder, *args, **train)
    assert len(caught.value.problems) == 1, str(caught.value)
    return str(caught.value)


def script(arguments: str) -> dict[str, str]:
    return {"train.sh": SCRIPT.format(fp8=arguments)}


def accelerate(said: str, version: int = 2, efficient: str = "false") -> dict[str, str]:
    return {"fsdp.yaml": ACCELERATE.format(fp8=said, version=version, efficient=efficient)}


OWN = {"micro_batch": 1, "seq_len": 64, "precision": "bf16"}
FSDP = {"micro_batch": 1, "seq_len": 64, "fsdp": "fsdp.yaml"}


def test_a_megatron_script_unmodified(tmp_path: Path) -> None:
    assert fp8(tmp_path, script(""), megatron="train.sh") is None
    said = (
        "--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather --fp8-amax-history-len 16 "
        "--first-last-layers-bf16 --num-layers-at-end-in-bf16 2"
    )
    assert fp8(tmp_path, script(said), megatron="train.sh") == Fp8Settings(
        recipe="tensorwise", classes=(), bf16_first=1, bf16_last=2, caches_weights=True,
        keeps_core_output=True, primary_weights=True,
    )  # fmt: skip
    made = fp8(tmp_path, script("--fp8-format e4m3"), megatron="train.sh")
    assert made is not None
    assert (made.recipe, made.caches_weights, made.bf16_first) == ("delayed", True, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--fp8-format e5m2", "train.sh:4:18   fp8_format: must be 'e4m3' or 'hybrid'"),
        ("--fp8-format hybrid --fp8-recipe mxfp8",
         "train.sh:4:38   fp8_recipe: fp8 recipe mxfp8 needs Blackwell; H100-SXM-80GB is hopper"),
        ("--fp8-format hybrid --first-last-layers-bf16",
         "train.sh:4:25   first_last_layers_bf16: Megatron refuses it with delayed scaling"),
        ("--fp8-param-gather", "fp8_param_gather: needs fp8_format"),
        (("--fp8-format hybrid --fp8-recipe blockwise --first-last-layers-bf16 "
         "--num-layers-at-start-in-bf16 5"), "must be at most the 4 layers of a pipeline stage"),
    ],
)  # fmt: skip
def test_megatrons_refusals(tmp_path: Path, arguments: str, said: str) -> None:
    assert said in refused(tmp_path, script(arguments), megatron="train.sh")


def test_accelerates_file_unmodified(tmp_path: Path) -> None:
    engine = fp8(tmp_path, accelerate("backend: TE\n  fp8_format: HYBRID\n  margin: 0"), **FSDP)
    assert engine == Fp8Settings(linears="all")
    assert fp8(tmp_path, accelerate("backend: AO"), **FSDP) == Fp8Settings(
        library="torchao", recipe="tensorwise", linears="all_but_first_and_last",
        float8_all_gather=True, precomputes_scales=True,
    )  # fmt: skip
    said = "fp8_backend: AO\n  enable_fsdp_float8_all_gather: false"
    first = fp8(tmp_path, accelerate(said, version=1), **FSDP)
    assert first is not None
    assert not first.float8_all_gather


@pytest.mark.parametrize(
    ("said", "version", "efficient", "message"),
    [
        ("backend: MSAMP", 2, "false",
         "fsdp.yaml:8:12   fp8_config.fp8_backend: MS-AMP is not simulated; use TE or AO"),
        ("backend: XX", 2, "false", "fp8 needs fp8_config with backend TE or AO"),
        ("backend: AO", 2, "true", "fsdp_cpu_ram_efficient_loading: Accelerate refuses it"),
        ("backend: AO", 1, "false", "fp8 all-gathers need fsdp_version 2"),
        ("backend: TE\n  override_linear_precision: [false, false, true]", 2, "false",
         "products in higher precision are not simulated"),
        ("backend: TE\n  formt: HYBRID", 2, "false", "unknown key 'fp8_formt'"),
    ],
)  # fmt: skip
def test_accelerates_refusals(
    tmp_path: Path, said: str, version: int, efficient: str, message: str
) -> None:
    assert message in refused(tmp_path, accelerate(said, version, efficient), **FSDP)


def test_a_section_of_its_own(tmp_path: Path) -> None:
    assert fp8(tmp_path, fp8="tensorwise", **OWN) == Fp8Settings(recipe="tensorwise")
    gather = {"library": "torchao", "enable_fsdp_float8_all_gather": True}
    own = OWN | {"precision": "fp32", "fsdp": {"mixed_precision": "bf16"}}
    made = fp8(tmp_path, fp8=gather, **own)
    assert made == Fp8Settings(library="torchao", recipe="tensorwise", float8_all_gather=True)
    mx = fp8(tmp_path, None, "hgx-b200-8", fp8={"recipe": "mxfp8", "linears": "all"}, **OWN)
    assert mx == Fp8Settings(recipe="mxfp8", linears="all")


@pytest.mark.parametrize(
    ("said", "node", "train", "message"),
    [
        ("delayed", "dgx-a100-80-8", OWN, "train.fp8: fp8 recipe delayed needs Ada or Hopper or"),
        ("delayed", "hgx-h100-8", OWN | {"precision": "fp32"}, "stand between 16-bit tensors"),
        ("rowwise", "hgx-h100-8", OWN, "recipe of transformer_engine is delayed or tensorwise or"),
        ({"library": "torchao", "enable_fsdp_float8_all_gather": True}, "hgx-h100-8", OWN,
         "train.fp8.enable_fsdp_float8_all_gather: needs FSDP2"),
        ({"precompute_float8_dynamic_scale_for_fsdp": True}, "hgx-h100-8", OWN,
         "needs enable_fsdp_float8_all_gather"),
        ({"recipes": "delayed"}, "hgx-h100-8", OWN, "did you mean 'recipe'?"),
        ("delayed", "hgx-h100-8", {"megatron": {"micro_batch_size": 1, "bf16": True}},
         "belongs into Megatron's arguments, as fp8_format"),
    ],
)  # fmt: skip
def test_its_mistakes(
    tmp_path: Path, said: Any, node: str, train: dict[str, Any], message: str
) -> None:
    assert message in refused(tmp_path, None, node, fp8=said, **train)


def test_it_is_said_once(tmp_path: Path) -> None:
    files = accelerate("backend: TE")
    assert "remove one of them" in refused(tmp_path, files, fp8="delayed", **FSDP)
