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
from typing import Any

from raysim.cli import terminal
from raysim.cli.init_engine import Engine, Line, read_engine
from raysim.cli.init_serve import BEGINNING, kind_of, serving
from raysim.cli.init_workers import gpus_of, workers
from raysim.cli.mistakes import expect_config
from raysim.errors import ScenarioError

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
_LONGEST_NAME = 100
_OF_FILES = ("deepspeed", "fsdp", "config", "application", "model", "engine_kwargs")
"""Keys that are the files' own."""
_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu")
_PARALLEL = """\
      # tensor_parallel: 8           # if your script runs models over several GPUs
      # pipeline: {stages: 4}
"""
_NO_GPUS = "A Ray program runs on it all the same: raysim run script.py --cluster FILE"
_NO_ENGINE = """\
      # without deepspeed: DDP; or one of
      # fsdp: accelerate.yaml        # what `accelerate config` wrote
      # megatron: train.sh           # Megatron-LM's launch script
"""

_SCENARIO = """\
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
_GPUS_PER_NODE, _GPUS = 8, 16
"""Of the starter's cluster."""
_CLUSTER = """\
  nodes: NODES # as many as the job's workers need
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
    if config is not None:
        expect_config(config)
    engine = read_engine(deepspeed, _ZERO3 if config is None else None)
    names = _named(config, engine, cluster)
    kind = "" if cluster is None else kind_of(cluster)
    served = kind == "RayService" and deepspeed is None
    if served and cluster is not None:
        where = _cluster_text(names[cluster], _unsaid(cluster))
        scenario = serving(cluster, where, folder, _name(folder), names=names, config=config)
    else:
        scenario = _text(folder, config, engine, cluster, names)
    with terminal.writing(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ScenarioError(f"{folder}: already exists; init writes only new folders")
        folder.mkdir(parents=True, exist_ok=True)
        written = _files(folder, config, engine, names, starter=not served)
        (folder / "scenario.yaml").write_text(scenario, encoding="utf-8", newline="\n")
    problems = _left_open(folder)
    if quiet:
        terminal.complain(problems)
        return
    terminal.say(f"Wrote     {folder}/   {'  '.join(['scenario.yaml', *written])}")
    for line in _assumed(scenario):
        terminal.say(line)
    if kind == "RayJob":
        terminal.say(f"Beside    raysim run {cluster} plays the program that it starts")
    if problems:
        terminal.say("Before it runs, these need an answer:")
        terminal.complain(problems)
        return
    terminal.say(f"Next      raysim run {folder}")


def _assumed(scenario: str) -> list[str]:
    """What the user's files do not say, and this scenario does: a line each to look at."""
    from raysim.scenario.yaml_text import parse_yaml_all

    data: Any = parse_yaml_all(scenario, "scenario.yaml")[0].data
    cluster, [said_of_job] = data["cluster"], data["jobs"][0].values()
    machines = {name: chosen["node"] for name, chosen in cluster.get("hardware", {}).items()}
    if "node" in cluster:
        machines = {"nodes": f"{cluster['nodes']} x {cluster['node']}"}
    job = {key: value for key, value in said_of_job.items() if key not in _OF_FILES}
    said = ", ".join(f"{key} {_plain(value)}" for key, value in (machines | job).items())
    text = f"Assumed   {said}; change it in scenario.yaml"
    return textwrap.wrap(text, terminal.width(), subsequent_indent=" " * 10, break_long_words=False)


def _plain(value: Any) -> str:
    """A value as it stands in the file, on one line."""
    return str(value) if not isinstance(value, dict | list) else json.dumps(value).replace('"', "")


def _named(config: Path | None, engine: Engine, cluster: Path | None) -> dict[Path, str]:
    """What each of the user's files is called in the folder: two may bear one name.

    The engine's keep theirs, by which one of them may point to the other.
    """
    engines = dict.fromkeys(engine.files, engine.key)
    taken = {"scenario.yaml"} if config is not None else {"scenario.yaml", "config.json"}
    names: dict[Path, str] = {}
    for path, kind in (*engines.items(), (config, "model"), (cluster, "cluster")):
        if path is not None and path not in names:
            names[path] = f"{kind}_{path.name}" if path.name in taken else path.name
            taken.add(names[path])
    order = (config, *engines, cluster)
    return {path: names[path] for path in order if path is not None}


def _text(
    folder: Path,
    config: Path | None,
    engine: Engine,
    cluster: Path | None,
    names: Mapping[Path, str],
) -> str:
    """scenario.yaml; the user's files are read before anything is written."""
    train = _train_lines(_read_config(config), engine)
    where, ranks = _cluster(cluster, engine, names)
    if ranks is not None:
        train.append((f"workers: {ranks}", "GPUs your file asks for; times degrees below"))
    kept = "none" if config is not None and not engine.recomputes else "full"
    train.append((f"activation_checkpointing: {kept}", "full recomputes every block; or none"))
    if engine.key:
        name = names[engine.files[0]] if engine.files else "ds_config.json"
        why = 'unmodified; comments and "auto" allowed'
        train.insert(0, (f"{engine.key}: {_quoted(name)}", why))
    source = _quoted("config.json" if config is None else names[config])
    open_ends = _PARALLEL if engine.key else _NO_ENGINE + _PARALLEL
    begun = BEGINNING.format(
        folder=folder, explained="train.seq_len", name=_name(folder), cluster=where
    )
    return begun + _SCENARIO.format(
        model=_line(2, f"from: {source}", "Hugging Face config.json, unmodified"),
        train="".join(_line(6, line, why) for line, why in train) + open_ends,
    )


def _name(folder: Path) -> str:
    """Of the scenario in a folder."""
    stem = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "scenario"
    return stem[:_LONGEST_NAME]


def _line(indent: int, text: str, why: str) -> str:
    """One line of YAML with its comment in the comments' column."""
    return f"{' ' * indent + text:<36} # {why}\n"


def _train_lines(config: Mapping[str, Any], engine: Engine) -> list[Line]:
    """What the files leave open: lengths, batch, how long to train."""
    lines = []
    text = config.get("text_config")
    sizes = {**config, **(text if isinstance(text, Mapping) else {})}
    longest = next((sizes[k] for k in _LENGTHS if isinstance(sizes.get(k), int)), None)
    if longest is not None:
        lines.append((f"seq_len: {min(longest, _SEQ_LEN)}", "tokens per sample"))
    given = engine.config or {}
    if all(given.get(key, "auto") == "auto" for key in _BATCH):
        lines.append(("micro_batch: 1", "samples per GPU and micro-step"))
        if not isinstance(given.get("gradient_accumulation_steps"), int):
            lines.append(("gradient_accumulation_steps: 8", "micro-steps per optimizer step"))
    if engine.release is not None:
        lines.append(engine.release)
    if engine.config is None:
        lines += engine.precision or [("precision: bf16", "fp32, fp16 or bf16")]
    elif (auto := _auto_precision(engine.config)) is not None:
        lines.append((f"precision: {auto}", 'what --bf16 or --fp16 says, for "auto"'))
    if "optimizer" not in given:
        name = "DeepSpeedCPUAdam" if _offloads(given) else "AdamW"
        lines.append((f"optimizer: {name}", "the one your script builds"))
    lines.append(("steps: 1000", "or tokens: 100G, or epochs: 3 with data.train_samples"))
    return lines


def _auto_precision(deepspeed: Mapping[str, Any]) -> str | None:
    """The precision that the Trainer's arguments would switch on; None: the JSON says it."""
    said = {}
    for name in ("bf16", "fp16"):
        block = deepspeed.get(name)
        said[name] = block.get("enabled") if isinstance(block, Mapping) else None
    if True in said.values():
        return None
    return next((name for name, enabled in said.items() if enabled == "auto"), None)


def _offloads(deepspeed: Mapping[str, Any]) -> bool:
    """ZeRO-Offload: the optimizer runs on the CPU, where DeepSpeed wants its own."""
    zero = deepspeed.get("zero_optimization")
    block = zero if isinstance(zero, Mapping) else {}
    where = block.get("offload_optimizer")
    said = isinstance(where, Mapping) and where.get("device", "none") != "none"
    return said or block.get("cpu_offload") is True


def _read_config(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return _LLAMA31_8B
    from raysim.models.huggingface import read_config

    return read_config(path)


def _cluster(
    path: Path | None, engine: Engine, names: Mapping[Path, str]
) -> tuple[str, int | None]:
    """The ``cluster`` section, and the workers where they are not simply all of its GPUs."""
    if path is None:
        ranks = workers(engine.config, engine.ranks or _GPUS) or engine.ranks
        nodes = -(-(ranks or _GPUS) // _GPUS_PER_NODE)
        text = _CLUSTER.replace("NODES", f"{nodes:<27}")
        return text, None if ranks == nodes * _GPUS_PER_NODE else ranks
    hardware = _unsaid(path)
    started, most = gpus_of(path, hardware)
    ranks = workers(engine.config, started or most)
    if ranks is None and not started:
        ranks = most or None
    return _cluster_text(names[path], hardware), None if ranks == started else ranks


def _cluster_text(name: str, unknown: Mapping[str, Mapping[str, object]]) -> str:
    """The ``cluster`` section around a Ray file, with hardware for groups it says nothing of."""
    text = f"  from: {_quoted(name)}\n"
    if unknown:
        text += "  hardware:                          # what the file does not say; please check\n"
    for group, chosen in unknown.items():
        said = ", ".join(f"{key}: {value}" for key, value in chosen.items())
        text += f"    {_quoted(group)}: {{{said}}}\n"
    return text


def _unsaid(path: Path) -> dict[str, dict[str, object]]:
    """Groups of a Ray file whose machines it does not name, with a guess."""
    from raysim.scenario.anyscale import read_cluster_file
    from raysim.scenario.clusters import read_groups
    from raysim.scenario.hardware_choice import unsaid

    reading = read_groups(read_cluster_file(path, str(path)))
    if reading.errors:
        raise ScenarioError(reading.errors)
    return unsaid(reading.groups)


def _files(
    folder: Path, config: Path | None, engine: Engine, copied: Mapping[Path, str], *, starter: bool
) -> list[str]:
    """Copy the user's files, or write the ``starter``'s; their names."""
    names = list(copied.values())
    for path, name in copied.items():
        shutil.copyfile(path, folder / name)
    if not starter:
        return names
    if config is None:
        (folder / "config.json").write_text(json.dumps(_LLAMA31_8B, indent=2) + "\n")
        names.append("config.json")
    if config is None and engine.key == "deepspeed" and not engine.files:
        (folder / "ds_config.json").write_text(_ZERO3)
        names.append("ds_config.json")
    return names


def _left_open(folder: Path) -> list[str]:
    """Problems that still keep the new scenario from running."""
    from raysim.scenario.build import check_family
    from raysim.scenario.load import Scenario, load

    try:
        made = load(folder)
        if isinstance(made, Scenario):
            check_family(made)
    except ScenarioError as error:
        said = [str(problem) for problem in error.problems]
        return said + [_NO_GPUS] * any("the cluster has no GPUs" in line for line in said)
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
