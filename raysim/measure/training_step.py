"""Real training steps on this machine: DDP, DeepSpeed ZeRO, PipelineModule, FSDP2.

Each case runs in ranks of its own under ``torch.distributed.run`` (``training_rank``); what comes
back is the time of each phase (``training_steps_<role>.csv``) with the cores that other processes
and the hypervisor took meanwhile, and the collectives and the memory of the last step
(``training_records.json``), beside the cases themselves.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from raysim.errors import CalibrationError
from raysim.measure.machine import Disturbance
from raysim.measure.session import Session, needs

COLUMNS = ("case", "ranks", "phase")
WARM_UP = 2
"""First steps of a case, which are not kept: allocation, traces, buckets."""
QUIET = 1.25
"""A step counts when its yardstick is within this factor of the case's fastest."""
LEAST = 3
"""Repetitions below which a case counts as disturbed throughout, and keeps all."""
TIMEOUT_S = 600.0
OPERATORS = "training_operators.json"
"""Of a GPU, for cases with ``profile``: operators of one step, with their own device seconds."""
MODEL = {
    "model_type": "llama", "vocab_size": 4096, "hidden_size": 384, "intermediate_size": 1024,
    "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 6,
    "max_position_embeddings": 256, "tie_word_embeddings": False,
}  # fmt: skip
"""What is measured unless a file of cases is given."""


def default_cases(ranks: int = 2) -> list[dict[str, Any]]:
    """One small Llama under DDP, ZeRO-1 to 3 and a pipeline of two stages."""

    def case(name: str, engine: str, stage: int = 0, accumulation: int = 1) -> dict[str, Any]:
        zero: dict[str, Any] = {"stage": stage}
        if stage:
            zero["reduce_bucket_size"] = 5_000_000
        config = {
            "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": accumulation,
            "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True,
            "zero_optimization": zero,
        }  # fmt: skip
        return {
            "name": name, "engine": engine, "ranks": ranks, "model": MODEL, "seq": 128,
            "config": config, "steps": 10, "listen": False,
        }  # fmt: skip

    stages = [case(f"zero{stage}", "deepspeed", stage) for stage in (1, 2, 3)]
    return [case("ddp", "ddp"), *stages, case("pipeline", "pipeline", accumulation=4)]


def run_cases(
    cases: Sequence[Mapping[str, Any]], *, timeout_s: float = TIMEOUT_S
) -> list[dict[str, Any]]:
    """Answers of all ranks, rank 0 first, by case name; the cases have one number of ranks.

    Raises
    ------
    CalibrationError
        A rank failed, or nothing came back in time.
    """
    (ranks,) = {case["ranks"] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "cases.json"), Path(folder, "found")
        source.write_text(json.dumps(list(cases)), encoding="utf-8")
        if ranks == 1:
            return [_alone(source, target, timeout_s)]
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        launch += ["--master-port", str(_free_port()), "-m", "raysim.measure.training_rank"]
        try:
            done = subprocess.run(  # noqa: S603  (this interpreter, our own module)
                [*launch, str(source), str(target)],
                check=False, capture_output=True, text=True, timeout=timeout_s, env=_environment(),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise CalibrationError(
                f"measure step: no answer in {timeout_s:g} s. An interrupted build of DeepSpeed's "
                "operators leaves a file named lock under ~/.cache/torch_extensions: remove it"
            ) from None
        if done.returncode:
            raise CalibrationError(f"measure step: a rank failed:\n{done.stderr[-3000:]}")
        return [
            json.loads(Path(f"{target}.{rank}.json").read_text(encoding="utf-8"))
            for rank in range(ranks)
        ]


def _alone(source: Path, target: Path, timeout_s: float) -> dict[str, Any]:
    """The answer of a process that starts with torch imported, but has touched no GPU."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["raysim.measure.training_rank"])
    process = server.Process(target=_rank_alone, args=(source, target))
    process.start()
    process.join(timeout_s)
    if process.is_alive():
        process.kill()
        raise CalibrationError(f"measure step: no answer in {timeout_s:g} s")
    if process.exitcode:
        said = Path(f"{target}.error")
        why = said.read_text(encoding="utf-8") if said.exists() else f"exit {process.exitcode}"
        raise CalibrationError(f"measure step: the rank failed:\n{why[-3000:]}")
    found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return found


def _rank_alone(source: Path, target: Path) -> None:
    from raysim.measure.training_rank import alone

    try:
        alone(source, target)
    except BaseException:
        Path(f"{target}.error").write_text(traceback.format_exc(), encoding="utf-8")
        raise


def _environment() -> dict[str, str]:
    """One thread per rank and, without a GPU, DeepSpeed's CPU accelerator."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    here = str(Path(__file__).resolve().parents[2])
    python = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    found = {**os.environ, "PATH": path, "PYTHONPATH": python}
    found.setdefault("OMP_NUM_THREADS", "1")
    import torch

    if not torch.cuda.is_available():
        found["DS_ACCELERATOR"] = "cpu"
    return found


def _free_port() -> int:
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def quiet(steps: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """Steps after the warm-up during which nobody else used the cores, by their yardsticks."""
    kept = list(steps[WARM_UP:]) or list(steps)
    best = min(step["yardstick"] for step in kept)
    calm = [step for step in kept if step["yardstick"] <= QUIET * best]
    return calm if len(calm) >= LEAST else kept


def slowest_rank(answers: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, float]]:
    """Steps of a case, each phase as long as on its slowest rank."""
    ranks = [answer[name]["seconds"] for answer in answers]
    return [
        {phase: max(step[phase] for step in steps) for phase in steps[0]}
        for steps in zip(*ranks, strict=True)
    ]


def samples(steps: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, list[float]]]:
    """Quiet repetitions of each phase."""
    calm = quiet(steps)
    for phase in calm[0]:
        if phase != "yardstick":
            yield phase, [step[phase] for step in calm]


def record(answers: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """Collectives, ``comms_logger`` and memory of each rank's last step."""
    keys = ("collectives", "comms_logger", "memory", "peak")
    return [{k: answer[name][k] for k in keys if k in answer[name]} for answer in answers]


def device_samples(answer: Mapping[str, Any]) -> Iterator[tuple[str, list[float], str]]:
    """Of a GPU: its steps without a wait in between, the host's share of them, clock and power."""
    if "free" in answer:
        yield "step free", answer["free"], "s"
        yield "step queued", answer["host"], "s"
        for name, unit in (("clock_mhz", "MHz"), ("power_w", "W")):
            if answer[name] is not None:
                yield name.partition("_")[0], [answer[name]], unit


def measure(session: Session) -> None:
    """Fill ``training_steps_<role>.csv`` and write the records beside it.

    ``session.cases`` names a JSON list of cases; each may say its ``role``, ``validation`` unless
    told otherwise.

    Raises
    ------
    CalibrationError
        A package is absent, the file cannot be read, or every case failed.
    """
    for package in ("torch", "deepspeed", "transformers"):
        needs(package, "step")
    cases = _read(session)
    known = _load(session.folder / "training_records.json")
    kernels = _load(session.folder / OPERATORS)
    for case in cases:
        role = case.get("role", "validation")
        table = session.table(
            f"training_steps_{role}", COLUMNS, "medians over undisturbed steps, slowest rank"
        )
        if any(row.parameters["case"] == case["name"] for row in table):
            session.kept += 1
            continue
        if session.budget.left_s() <= 0:
            session.left += 1
            continue
        disturbance = Disturbance()
        try:
            answers = run_cases([case])
        except CalibrationError as error:
            session.left_out.append(f"step {case['name']}: {error}")
            session.say(f"left out: {session.left_out[-1]}")
            continue
        found = [(p, s, "s") for p, s in samples(slowest_rank(answers, case["name"]))]
        found += device_samples(answers[0][case["name"]])
        found += [(who, [cores], "cores") for who, cores in disturbance.cores().items()]
        with table:
            for phase, values, unit in found:
                keys = {"case": case["name"], "ranks": case["ranks"], "phase": phase}
                row = table.add(keys, values, unit)
                session.say(f"step {case['name']} {phase}: {row.value:.4g} {unit}")
        session.measured += 1
        known[case["name"]] = record(answers, case["name"])
        _save(session.folder / "training_records.json", known)
        if "operators" in answers[0][case["name"]]:
            kernels[case["name"]] = answers[0][case["name"]]["operators"]
            _save(session.folder / OPERATORS, kernels)
    if session.left_out and not session.measured and not session.kept:
        raise CalibrationError(f"measure step: every case failed; {session.left_out[-1]}")
    everything = {c["name"]: c for c in (*_load_list(session.folder), *cases)}
    _save(session.folder / "training_cases.json", list(everything.values()))


def _read(session: Session) -> list[dict[str, Any]]:
    if session.cases is None:
        return default_cases(session.ranks[0] if session.ranks else 2)
    try:
        cases: list[dict[str, Any]] = json.loads(session.cases.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{session.cases}: {error}") from None
    for case in cases:
        missing = {"name", "engine", "ranks", "model", "seq", "config"} - set(case)
        if missing:
            name = case.get("name", "a case")
            raise CalibrationError(f"{session.cases}: {name} lacks {', '.join(sorted(missing))}")
    return cases


def _load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _load_list(folder: Path) -> list[dict[str, Any]]:
    path = folder / "training_cases.json"
    found: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return found


def _save(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
