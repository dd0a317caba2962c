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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

from raysim.errors import CalibrationError
from raysim.measure.machine import Disturbance
from raysim.measure.session import Session, needs
from raysim.measure.table import MeasuredTable, read_json, write_json

COLUMNS = ("case", "ranks", "phase")
WARM_UP = 2
"""First steps of a case, which are not kept: allocation, traces, buckets."""
QUIET = 1.25
"""A step counts when its yardstick is within this factor of the case's fastest."""
LEAST = 3
"""Repetitions below which a case counts as disturbed throughout, and keeps all."""
TIMEOUT_S = 600.0
PRELOADED = ["raysim.measure.training_rank", "torch._dynamo"]
"""What every process of a single rank needs and takes seconds to import."""
SHARED = ("ranks", "engine", "model")
"""Keys of cases that a process can run one after the other."""
RECORDS = "training_records.json"
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


def run_cases(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
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
            return [_alone(source, target)]
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        launch += ["--master-port", str(_free_port()), "-m", "raysim.measure.training_rank"]
        try:
            done = subprocess.run(  # noqa: S603  (this interpreter, our own module)
                [*launch, str(source), str(target)],
                check=False, capture_output=True, text=True, timeout=TIMEOUT_S, env=_environment(),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise CalibrationError(
                f"measure step: no answer in {TIMEOUT_S:g} s. An interrupted build of DeepSpeed's "
                "operators leaves a file named lock under ~/.cache/torch_extensions: remove it"
            ) from None
        if done.returncode:
            raise CalibrationError(f"measure step: a rank failed:\n{done.stderr[-3000:]}")
        return [
            json.loads(Path(f"{target}.{rank}.json").read_text(encoding="utf-8"))
            for rank in range(ranks)
        ]


def _alone(source: Path, target: Path) -> dict[str, Any]:
    """The answer of a process that starts with torch imported, but has touched no GPU."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    process = server.Process(target=_rank_alone, args=(source, target))
    process.start()
    process.join(TIMEOUT_S)
    late = process.is_alive()
    process.kill()
    if not target.exists():
        said = Path(f"{target}.error")
        why = said.read_text(encoding="utf-8") if said.exists() else f"exit {process.exitcode}"
        why = f"no answer in {TIMEOUT_S:g} s" if late else f"the rank failed:\n{why[-3000:]}"
        raise CalibrationError(f"measure step: {why}")
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
    keys = ("collectives", "comms_logger", "memory", "peak", "free")
    return [{k: answer[name][k] for k in keys if k in answer[name]} for answer in answers]


def device_samples(answer: Mapping[str, Any]) -> Iterator[tuple[str, list[float], str]]:
    """Of a GPU: its steps without a wait in between, the host's share of them, clock and power."""
    if "free" in answer:
        yield "step free", answer["free"], "s"
        yield "step queued", answer["host"], "s"
        for name, unit in (("clock_mhz", "MHz"), ("power_w", "W")):
            if answer[name] is not None:
                yield name.partition("_")[0], [answer[name]], unit


def groups(cases: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Cases that one start serves: of a single rank, neighbours of one engine and model."""

    def start(numbered: tuple[int, Mapping[str, Any]]) -> object:
        index, case = numbered
        apart = case["ranks"] > 1 or case["engine"] == "deepspeed"  # whose engines outlive a case
        return index if apart else json.dumps([case[k] for k in SHARED])

    for _, group in groupby(enumerate(cases), start):
        yield [case for _, case in group]


class Notebook:
    """The tables and records of a session's folder."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.records = read_json(session.folder / RECORDS)
        self.operators = read_json(session.folder / OPERATORS)

    def table(self, case: Mapping[str, Any]) -> MeasuredTable:
        """Of the case's role."""
        role = case.get("role", "validation")
        notes = "medians over undisturbed steps, slowest rank"
        return self.session.table(f"training_steps_{role}", COLUMNS, notes)

    def has(self, case: Mapping[str, Any]) -> bool:
        """Whether an earlier run measured it."""
        return any(row.parameters["case"] == case["name"] for row in self.table(case))

    def leave_out(self, case: Mapping[str, Any], why: str) -> None:
        """Say why a case could not be measured."""
        self.session.left_out.append(f"step {case['name']}: {why}")
        self.session.say(f"left out: {self.session.left_out[-1]}")

    def keep(
        self,
        case: Mapping[str, Any],
        answers: Sequence[Mapping[str, Any]],
        cores: Mapping[str, float],
    ) -> None:
        """Write what the ranks answered; on the disk when this returns."""
        name, first = case["name"], answers[0][case["name"]]
        found = [(p, s, "s") for p, s in samples(slowest_rank(answers, name))]
        found += device_samples(first)
        found += [(who, [used], "cores") for who, used in cores.items()]
        with self.table(case) as table:
            for phase, values, unit in found:
                keys = {"case": name, "ranks": case["ranks"], "phase": phase}
                row = table.add(keys, values, unit)
                self.session.say(f"step {name} {phase}: {row.value:.4g} {unit}")
        self.session.measured += 1
        self.records[name] = record(answers, name)
        write_json(self.session.folder / RECORDS, self.records)
        if "operators" in first:
            self.operators[name] = first["operators"]
            write_json(self.session.folder / OPERATORS, self.operators)


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
    cases, notebook = _read(session), Notebook(session)
    new = [case for case in cases if not notebook.has(case)]
    session.kept += len(cases) - len(new)
    for group in groups(new):
        if session.budget.left_s() <= 0:
            session.left += len(group)
            continue
        _measure_group(group, notebook)
    if session.left_out and not session.measured and not session.kept:
        raise CalibrationError(f"measure step: every case failed; {session.left_out[-1]}")
    everything = {c["name"]: c for c in (*_load_list(session.folder), *cases)}
    write_json(session.folder / "training_cases.json", list(everything.values()))


def _measure_group(group: Sequence[Mapping[str, Any]], notebook: Notebook) -> None:
    disturbance = Disturbance()
    try:
        answers = run_cases(group)
    except CalibrationError as error:
        for case in group:
            notebook.leave_out(case, str(error))
        return
    cores = disturbance.cores()
    for case in group:
        why = answers[0].get(case["name"], {"error": "its process ended before"}).get("error")
        if why is None:
            notebook.keep(case, answers, cores)
        else:
            notebook.leave_out(case, why)


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


def _load_list(folder: Path) -> list[dict[str, Any]]:
    path = folder / "training_cases.json"
    found: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return found
