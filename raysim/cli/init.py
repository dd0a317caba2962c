"""``raysim init``: a starter scenario that runs at once, around the user's own files if given.

Only what the files leave open is written into the scenario, each line with a comment; the files
themselves are copied unchanged. Without files the starter is Llama-3.1-8B, ZeRO-3, on 2 x 8 H100.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.cli import terminal
from raysim.errors import ScenarioError

if TYPE_CHECKING:
    from raysim.scenario.node_request import NodeRequest

_LLAMA31_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
"""https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json"""
_ZERO3 = """\
{
  // DeepSpeed's own JSON, as your training script reads it.
  "train_micro_batch_size_per_gpu": 1,
  "gradient_accumulation_steps": 8,
  "gradient_clipping": 1.0,
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
  "zero_optimization": {"stage": 3, "overlap_comm": true}
}
"""
_SEQ_LEN = 4096
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu")
_PARALLEL = """\
      # tensor_parallel: 8           # if your script runs models over several GPUs
      # pipeline: {stages: 4}
"""
_FEWER_RANKS = (
    "If your script is tensor or pipeline parallel, fewer ranks share the batch: give "
    "train.tensor_parallel or train.pipeline."
)
_NO_ENGINE = """\
      # without deepspeed: DDP; or one of
      # fsdp: accelerate.yaml        # what `accelerate config` wrote
      # megatron: train.sh           # Megatron-LM's launch script
"""

_SCENARIO = """\
# What to predict, and on what.   raysim run {folder}
# Every default taken:             raysim check {folder}
# What a key means:                raysim check --explain train.seq_len
raysim: 1                            # version of this file format
name: {name}
seed: 0

cluster:
{cluster}
model:
{model}
jobs:
  - train:
{train}
targets:                             # a missed one makes the exit code 1
  gpu_mem_peak: "<= 95%"
  # days: "<= 14"
  # usd: "<= 10k"
"""
_CLUSTER = """\
  nodes: 2
  node: hgx-h100-8                   # raysim catalog nodes
  fabric: rail_fat_tree              # star, fat_tree or rail_fat_tree
  # prices: {workers: 23.92 usd/h}   # your price per node
"""


def init(
    folder: Path,
    *,
    config: Path | None,
    deepspeed: Path | None,
    cluster: Path | None,
    quiet: bool = False,
) -> None:
    """Write the folder and say what to do next, unless ``quiet``.

    Raises
    ------
    ScenarioError
        A given file is absent or unreadable, or the folder already holds something.
    """
    scenario = _text(folder, config, deepspeed, cluster)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ScenarioError(f"{folder}: already exists; init writes only new folders")
        folder.mkdir(parents=True, exist_ok=True)
        names = _files(folder, config, deepspeed, cluster)
        (folder / "scenario.yaml").write_text(scenario, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ScenarioError(f"cannot write {folder}: {error.strerror or error}") from error
    problems = _left_open(folder)
    if quiet:
        terminal.complain(problems)
        return
    terminal.say(f"Wrote     {folder}/   {'  '.join(['scenario.yaml', *names])}")
    for line in _assumed(scenario):
        terminal.say(line)
    if problems:
        terminal.say("Before it runs, these need an answer:")
        terminal.complain(problems)
        return
    terminal.say(f"Next      raysim run {folder}")


def _assumed(scenario: str) -> list[str]:
    """What the user's files do not say, and this scenario does: a line each to look at."""
    from raysim.scenario.yaml_text import parse_yaml_all

    data: Any = parse_yaml_all(scenario, "scenario.yaml")[0].data
    cluster, train = data["cluster"], data["jobs"][0]["train"]
    machines = {name: chosen["node"] for name, chosen in cluster.get("hardware", {}).items()}
    if "node" in cluster:
        machines = {"nodes": f"{cluster['nodes']} x {cluster['node']}"}
    job = {key: value for key, value in train.items() if key != "deepspeed"}
    said = ", ".join(f"{key} {value}" for key, value in (machines | job).items())
    text = f"Assumed   {said}; change it in scenario.yaml"
    return textwrap.wrap(text, terminal.width(), subsequent_indent=" " * 10, break_long_words=False)


def _text(folder: Path, config: Path | None, deepspeed: Path | None, cluster: Path | None) -> str:
    """scenario.yaml; the user's files are read before anything is written."""
    engine = _read_deepspeed(deepspeed, starter=config is None)
    train = _train_lines(_read_config(config), engine)
    kept = "none" if config is not None else "full"
    train.append((f"activation_checkpointing: {kept}", "full recomputes every block; or none"))
    if engine is not None:
        name = "ds_config.json" if deepspeed is None else deepspeed.name
        train.insert(0, (f"deepspeed: {_quoted(name)}", 'unmodified; comments and "auto" allowed'))
    stem = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "scenario"
    source = _quoted("config.json" if config is None else config.name)
    open_ends = _PARALLEL if engine is not None else _NO_ENGINE + _PARALLEL
    return _SCENARIO.format(
        folder=folder,
        name=stem,
        cluster=_CLUSTER if cluster is None else _cluster_text(cluster),
        model=_line(2, f"from: {source}", "Hugging Face config.json, unmodified"),
        train="".join(_line(6, line, why) for line, why in train) + open_ends,
    )


def _line(indent: int, text: str, why: str) -> str:
    """One line of YAML with its comment in the comments' column."""
    return f"{' ' * indent + text:<36} # {why}\n"


def _train_lines(
    config: Mapping[str, Any], deepspeed: Mapping[str, Any] | None
) -> list[tuple[str, str]]:
    """What the files leave open: lengths, batch, how long to train."""
    lines = []
    longest = next((config[k] for k in _LENGTHS if isinstance(config.get(k), int)), None)
    if longest is not None:
        lines.append((f"seq_len: {min(longest, _SEQ_LEN)}", "tokens per sample"))
    given = deepspeed or {}
    if not any(isinstance(given.get(key), int) for key in _BATCH):
        lines.append(("micro_batch: 1", "samples per GPU and micro-step"))
        if not isinstance(given.get("gradient_accumulation_steps"), int):
            lines.append(("gradient_accumulation_steps: 8", "micro-steps per optimizer step"))
    if deepspeed is None:
        lines.append(("precision: bf16", "fp32, fp16 or bf16"))
    if "optimizer" not in given:
        name = "DeepSpeedCPUAdam" if _offloads(given) else "AdamW"
        lines.append((f"optimizer: {name}", "the one your script builds"))
    lines.append(("steps: 1000", "or tokens: 100G, or epochs: 3 with data.train_samples"))
    return lines


def _offloads(deepspeed: Mapping[str, Any]) -> bool:
    """ZeRO-Offload: the optimizer runs on the CPU, where DeepSpeed wants its own."""
    zero = deepspeed.get("zero_optimization")
    where = zero.get("offload_optimizer") if isinstance(zero, Mapping) else None
    return isinstance(where, Mapping) and where.get("device", "none") != "none"


def _read_config(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return _LLAMA31_8B
    from raysim.models.huggingface import read_config

    return read_config(path)


def _read_deepspeed(path: Path | None, *, starter: bool) -> Mapping[str, Any] | None:
    """The user's JSON, the starter's, or None for plain DistributedDataParallel."""
    from raysim.scenario.hjson_text import parse_hjson, read_hjson

    if path is None:
        return parse_hjson(_ZERO3, "ds_config.json").data if starter else None
    document = read_hjson(path, str(path))
    if not isinstance(document.data, Mapping):
        raise ScenarioError(document.problem((), "expected a JSON object"))
    return document.data


def _cluster_text(path: Path) -> str:
    """The ``cluster`` section around a Ray file, with hardware for groups it says nothing of."""
    text = f"  from: {_quoted(path.name)}\n"
    unknown = [request for request in _requests(path) if not _chosen(request)]
    if unknown:
        text += "  hardware:                          # what the file does not say; please check\n"
    for request in unknown:
        gpus = request.gpus or round(request.resources.get("GPU", 0))
        node = "hgx-h100-8" if gpus else "cpu-32"
        share = f", gpus: {gpus}" if gpus not in {0, 8} else ""
        text += f"    {_quoted(request.name)}: {{node: {node}{share}}}\n"
    return text


def _requests(path: Path) -> list[NodeRequest]:
    from raysim.scenario.kuberay import is_kuberay, read_kuberay
    from raysim.scenario.ray_cluster_yaml import is_ray_cluster_yaml, read_ray_cluster
    from raysim.scenario.yaml_text import read_yaml_all

    for document in read_yaml_all(path, str(path)):
        for recognises, read in (
            (is_kuberay, read_kuberay),
            (is_ray_cluster_yaml, read_ray_cluster),
        ):
            if recognises(document):
                reading = read(document)
                if reading.errors:
                    raise ScenarioError(reading.errors)
                return reading.groups
    raise ScenarioError(f"{path}: neither a `ray up` YAML nor a KubeRay resource")


def _chosen(request: NodeRequest) -> bool:
    from raysim.scenario.hardware_choice import choose_node

    try:
        choose_node(request, None)
    except ScenarioError:
        return False
    return True


def _files(
    folder: Path, config: Path | None, deepspeed: Path | None, cluster: Path | None
) -> list[str]:
    """Copy the user's files, or write the starter's; their names."""
    names = []
    for path in (config, deepspeed, cluster):
        if path is not None:
            shutil.copyfile(path, folder / path.name)
            names.append(path.name)
    if config is None:
        (folder / "config.json").write_text(json.dumps(_LLAMA31_8B, indent=2) + "\n")
        names.append("config.json")
    if config is None and deepspeed is None:
        (folder / "ds_config.json").write_text(_ZERO3)
        names.append("ds_config.json")
    return names


def _left_open(folder: Path) -> list[str]:
    """Problems that still keep the new scenario from running."""
    from raysim.scenario.load import load

    try:
        load(folder)
    except ScenarioError as error:
        said = [str(problem) for problem in error.problems]
        return said + [_FEWER_RANKS] * any("train_batch_size" in line for line in said)
    return []


def _quoted(name: str) -> str:
    """A name as a YAML scalar."""
    plain = re.fullmatch(r"[A-Za-z][\w.-]*", name) and name.lower() not in {
        "on",
        "off",
        "yes",
        "no",
    }
    return name if plain else json.dumps(name)
