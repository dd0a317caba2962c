"""One thing given in place of another: a run for a scenario, a config for either; and near names.

Says what was looked for, what is there, and the command that was perhaps meant.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from raysim.errors import ScenarioError

SCENARIO = "scenario.yaml"
RUNS = Path("runs")
SHELL = (".sh", ".bash", ".sbatch", ".slurm")
MOST_LISTED = 8
_OF_DEEPSPEED = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
_CLUSTER = re.compile(
    r"^(kind: *Ray(Cluster|Service)\b|available_node_types:|cluster_name:|head_node:)", re.MULTILINE
)
_SERVICE = re.compile(r"^kind: *RayService\b", re.MULTILINE)
_HUB = re.compile(r"[\w.-]+/(?!.*\.(json|ya?ml)$)[\w.-]+")
_SERVE_CONFIG = re.compile(r"^(applications:|import_path:)", re.MULTILINE)
_ACCELERATE = re.compile(r"^distributed_type:", re.MULTILINE)


def expect_scenario(path: Path, *, program: bool = True) -> None:
    """Nothing of what can be seen at once keeps ``path`` from being a scenario.

    Parameters
    ----------
    program
        Whether it may be a Python program as well.

    Raises
    ------
    ScenarioError
        It is absent, or something else.
    """
    shown = shlex.quote(str(path))
    if not path.exists():
        raise ScenarioError(f"{path}   no such file or folder{_instead(path)}")
    if path.is_dir() and not (path / SCENARIO).is_file():
        raise ScenarioError(f"{path}   {_of_folder(path, shown)}")
    if path.is_file() and path.suffix == ".py" and not program:
        raise ScenarioError(f"{path}   {_of_program(path, shown)}")
    if path.is_file() and (other := _of_file(path, shown)):
        raise ScenarioError(f"{path}   {other}")


def expect_config(path: Path) -> None:
    """``path`` may be a Hugging Face config.

    Raises
    ------
    ScenarioError
        It is absent, or a folder.
    """
    if path.is_dir():
        found = sorted(p.name for p in path.glob("*.json"))
        there = f"; in it: {_some(found)}" if found else ""
        raise ScenarioError(f"{path}   is a folder; needs a Hugging Face config.json{there}")
    if not path.exists():
        raise ScenarioError(f"{path}   no such file{_of_hub(path) or _instead(path)}")
    if path.suffix == ".json" and (other := _no_model(_json(path), shlex.quote(str(path)))):
        raise ScenarioError(f"{path}   {other}")


def _of_hub(path: Path) -> str:
    """What to do with a name of Hugging Face's hub, such as ``Qwen/Qwen3-32B``."""
    if not _HUB.fullmatch(str(path)) or path.parent.exists():
        return ""
    return (
        f"; raysim asks no network: `hf download {path} config.json --local-dir .` gets the file "
        "of a model of that name"
    )


def _no_model(data: object, shown: str) -> str:
    """What a JSON file is that describes no model, if that can be told."""
    if not isinstance(data, dict) or "model_type" in data or "architectures" in data:
        return ""
    if "peft_type" in data:
        return f"is PEFT's adapter config; give the model's config.json, and --peft {shown}"
    if any(key in data for key in _OF_DEEPSPEED):
        return (
            "is a DeepSpeed configuration, not a Hugging Face config.json; "
            f"`raysim init NAME --from config.json --deepspeed {shown}` takes both"
        )
    return ""


def _json(path: Path) -> object:
    """A JSON file's data; with comments, as DeepSpeed takes it, those of its keys it has."""
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, UnicodeDecodeError):
        return None  # the reader says why
    except ValueError:
        return dict.fromkeys(key for key in _OF_DEEPSPEED if f'"{key}"' in text)


def not_a_run(run: Path, known: Iterable[Path]) -> str:
    """Why ``run`` is none of the runs that are known, and what to do."""
    names = [folder.name for folder in known]
    shown = shlex.quote(str(run))
    if (run / SCENARIO).is_file() or (run.is_file() and run.suffix in {".yaml", ".yml", ".py"}):
        return f"is a scenario, not a run; `raysim run {shown}` makes one"
    what = "no summary.json in it" if run.is_dir() else f"no such folder, and none in {RUNS}/"
    near = difflib.get_close_matches(str(run), [*names, *(n.rpartition("-")[2] for n in names)], 1)
    said = f"not a run ({what})"
    if near:
        return f"{said}; did you mean {near[0]}?"
    return f"{said}; known: {_some(sorted(names))}" if names else said


def _instead(path: Path) -> str:
    """What else is there by nearly that name, or at all."""
    if any(p.name == str(path) or p.name.endswith(f"-{path}") for p in RUNS.glob("*")):
        return f"; {path} is a run: `raysim show {shlex.quote(str(path))}` prints it"
    folder = path.parent
    if not folder.is_dir():
        return f"; nor is there {folder}"
    there = [p for p in sorted(folder.iterdir()) if not p.name.startswith(".")]
    if str(path) in ("bash", "sh", "sbatch", "srun"):
        return "; give the shell script itself: `raysim run job.sbatch`"
    near = difflib.get_close_matches(path.name, [p.name for p in there], 1, 0.6)
    if near:
        return f"; did you mean {folder / near[0]}?"
    scenarios = [str(p) for p in there if (p / SCENARIO).is_file()]
    if not scenarios and folder == Path():
        scenarios = [str(p.parent) for p in sorted(Path().glob(f"*/*/{SCENARIO}"))]
        named = {Path(name).name: name for name in scenarios}
        for name in difflib.get_close_matches(path.name, named, 1, 0.7):
            return f"; did you mean {named[name]}?"
    if path.suffix == ".json":
        return ""
    return f"; scenarios here: {_some(scenarios)}" if scenarios else ""


def _of_folder(path: Path, shown: str) -> str:
    if (path / "trials.parquet").is_file():
        best = path / "best" / SCENARIO
        replay = f"; its choice is {best}" if best.is_file() else ""
        return f"is a plan's folder, not a scenario; `raysim show {shown}` prints it{replay}"
    if (path / "summary.json").is_file():
        resolved = shlex.quote(str(path / "scenario.resolved.yaml"))
        return (
            f"is a run's folder, not a scenario; `raysim show {shown}` prints it, "
            f"`raysim run {resolved}` replays it"
        )
    found = sorted(p.name for p in path.iterdir() if p.suffix in {".yaml", ".yml", ".py"})
    below = sorted(str(p.parent) for p in path.glob(f"*/{SCENARIO}"))
    there = f"; in it: {_some(found)}" if found else ""
    there = f"; scenarios in it: {_some(below)}" if below else there
    return f"the folder has no {SCENARIO}{there}"


def _of_program(path: Path, shown: str) -> str:
    """What to write around a program for verbs that change its cluster."""
    return (
        f"is a program, not a scenario; `raysim run {shown}` runs it. Around it write "
        f"{path.parent / SCENARIO}: {{cluster: {{from: cluster.yaml}}, "
        f"jobs: [{{script: {path.name}}}]}}"
    )


def _of_file(path: Path, shown: str) -> str:
    """What a file that is no scenario is, if that can be told."""
    if path.suffix in SHELL:
        return f"is a shell script, not a scenario; `raysim run {shown}` runs what it starts"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""  # the reader says why
    return _of_json(path, shown) if path.suffix == ".json" else _of_yaml(text, path, shown)


def _of_yaml(text: str, path: Path, shown: str) -> str:
    if re.search(r"^jobs:", text, re.MULTILINE):
        return ""
    if _SERVICE.search(text):
        return (
            "is a cluster and an application, not a scenario; "
            f"`raysim init NAME --cluster {shown}` "
            "makes one that points at both and says who asks (of vLLM with --from config.json)"
        )
    if _CLUSTER.search(text):
        return (
            f"is a cluster, not a scenario; `raysim init NAME --cluster {shown}` makes one "
            f"around it, `raysim run SCRIPT.py --cluster {shown}` runs a program on it"
        )
    if _SERVE_CONFIG.search(text):
        if "ray.serve.llm" in text:
            return (
                "is a Ray Serve LLM config, not a scenario; write one with its engine_kwargs: "
                "{cluster: {nodes: 1, node: p5.48xlarge}, jobs: [{llm: {model: config.json, "
                "engine_kwargs: {tensor_parallel_size: 2}, replicas: 2, load: {prompt: {mean: "
                "1500}, output: {mean: 300}, requests: 3000, rate: 10/s}}}]}"
            )
        return (
            "is a Ray Serve config, not a scenario; a scenario points at it and says who "
            "asks: {cluster: {nodes: 1, node: p5.48xlarge}, jobs: [{serve: {config: "
            f"{path.name}, load: ...}}}}]}}, see `raysim check --explain serve.load`"
        )
    if _ACCELERATE.search(text):
        return (
            "is Accelerate's config, not a scenario; "
            f"`raysim init NAME --from config.json --deepspeed {shown}` makes one around it, "
            f"`raysim run accelerate launch --config_file {shown} SCRIPT.py` runs a script"
        )
    return ""


def _of_json(path: Path, shown: str) -> str:
    data = _json(path)
    if not isinstance(data, dict):
        return ""
    if "model_type" in data or "architectures" in data:
        return (
            f"is a Hugging Face config, not a scenario; `raysim memory {shown}` says whether the "
            f"model fits, `raysim init NAME --from {shown}` makes a scenario around it"
        )
    if any(key in data for key in _OF_DEEPSPEED):
        return (
            "is a DeepSpeed configuration, not a scenario; "
            f"`raysim init NAME --deepspeed {shown}` makes one around it"
        )
    if "raysim" in data and "verdict" in data:
        return f"is a run's summary; `raysim show {shlex.quote(str(path.parent))}` prints it"
    return ""


def _some(names: list[str]) -> str:
    """The first few."""
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
