"""What a run found: numbers, records and the scenario, frozen; and how a folder is made of them.

A Result shows itself: ``str(result)`` and ``result.write()`` call the renderers of
``raysim.report``, late. Those are the only upward calls of the house; they are listed in
``pyproject.toml``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from raysim.kernel.simulation import collector_at_ease
from raysim.results.frames import SCHEMA, Frames

if TYPE_CHECKING:
    import pandas as pd

    from raysim.kernel.record import ColumnRecorder
    from raysim.results.ray.recorded import Recorded
    from raysim.training.memory.history import RankHistory

RUNS = Path("runs")
TraceFormat = Literal["perfetto", "chrome", "none"]
_OF_PROGRAMS = ("timeline.json", "output.txt", "compute.csv")
_SNAPSHOT = "memory_snapshot.pickle"
_TRACES = {"perfetto": "trace.pftrace", "chrome": "trace.json.gz"}


class Asked(Protocol):
    """What a Result needs of the scenario it answers (`raysim.scenario.load.Scenario`)."""

    def resolved(self) -> Mapping[str, Any]:
        """Everything the run depends on, as a scenario that replays it."""
        ...


class Located(Protocol):
    """A scenario that points at files which a replay needs too (a program's script)."""

    def resolved_in(self, folder: Path) -> Mapping[str, Any]:
        """The same, with paths that lead from ``folder``."""
        ...


def run_id(resolved: Mapping[str, Any], version: str) -> str:
    """Six hexadecimal digits of the resolved scenario and the package's version."""
    text = json.dumps([resolved, version], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


@dataclass(frozen=True)
class Result:
    """The answer to one scenario.

    Attributes
    ----------
    summary
        Plain dictionary, units in the names; what ``summary.json`` holds.
    records
        Spans, counters and instants of the simulated steps; None when the run did not record.
    scenario
        What was asked.
    program
        Of a Ray program: what its cluster's rooms wrote down; None of a training job.
    histories
        Of a training job that was recorded: what `memory_snapshot` plays, one per simulated rank.

    Examples
    --------
    >>> import raysim
    >>> result = raysim.run(raysim.load("scenarios/bert_mrpc_zero3"))
    >>> result.fits, round(result.summary["memory"]["frac"], 1)
    (True, 0.2)
    >>> list(result.frames)
    ['spans', 'collectives', 'steps', 'memory', 'links', 'instants']
    """

    summary: dict[str, Any]
    records: ColumnRecorder | None = field(default=None, repr=False, compare=False)
    scenario: Asked | None = field(default=None, repr=False, compare=False)
    program: Recorded | None = field(default=None, repr=False, compare=False)
    histories: tuple[RankHistory, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        """The printed report at 100 columns, without colour."""
        from raysim.report import console

        return console.text(self.summary)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields; frames are made again where they are needed."""
        names = ("summary", "records", "scenario", "program", "histories")
        return {name: getattr(self, name) for name in names}

    @property
    def fits(self) -> bool:
        """True when every GPU and host has memory enough."""
        return bool(self.summary["verdict"]["fits"])

    @cached_property
    def frames(self) -> Frames:
        """Tables by name, made on first use; `raysim.results.frames.SCHEMA` describes them."""
        return Frames(self.records, int(self.summary["cluster"]["gpus_per_node"]))

    @property
    def spans(self) -> pd.DataFrame:
        """One row per operation on a stream."""
        return self.frames["spans"]

    @property
    def steps(self) -> pd.DataFrame:
        """One row per step, rank and category of work."""
        return self.frames["steps"]

    @property
    def memory(self) -> pd.DataFrame:
        """One row per change of a memory category of a GPU."""
        return self.frames["memory"]

    @property
    def collectives(self) -> pd.DataFrame:
        """One row per collective or point-to-point transfer of a rank."""
        return self.frames["collectives"]

    @property
    def links(self) -> pd.DataFrame:
        """One row per change of a link's rate."""
        return self.frames["links"]

    def table(self, name: str) -> pd.DataFrame:
        """Of a Ray program at its end: tasks, actors, objects, nodes, workers, placement_groups.

        Columns are those of ``ray list --detail``.
        """
        if self.program is None:
            raise KeyError(f"{name!r}: a training job has frames, not Ray's tables")
        return self.program.frame(name)

    @property
    def plot(self) -> Any:
        """Charts for notebooks and files: ``plot.memory()``, ``plot.nodes().save("nodes.png")``.

        Of a training job `raysim.report.plots.training.TrainingPlots`, of a Ray program
        `raysim.report.plots.program.ProgramPlots`.
        """
        from raysim.report.plots import door

        return door.of_result(self)

    def memory_snapshot(self, rank: int | None = None) -> dict[str, Any]:
        """Of a training job: what ``torch.cuda.memory._snapshot()`` would answer at the end.

        Parameters
        ----------
        rank
            Global rank, one of those simulated; by default that with the highest peak.

        Raises
        ------
        ScenarioError
            There is no such rank, or nothing was recorded on a GPU.
        """
        from raysim.results import memory_snapshot

        return memory_snapshot.snapshot(memory_snapshot.of_rank(self.histories, rank))

    @cached_property
    def scenario_yaml(self) -> str:
        """The resolved scenario as YAML; running that file replays this run."""
        return "" if self.scenario is None else yaml_text(self.scenario.resolved())

    def folder(self) -> Path:
        """``runs/<name>-<id>``: the same inputs, the same folder."""
        return RUNS / f"{self.summary['scenario']}-{self.summary['run_id']}"

    def write(
        self,
        directory: str | Path | None = None,
        *,
        trace: TraceFormat = "perfetto",
        memory_snapshot: bool = False,
    ) -> Path:
        """Write everything a next tool can use; an older run in the same folder is replaced.

        Parameters
        ----------
        directory
            Where to; `folder` by default.
        trace
            ``perfetto`` (trace.pftrace), ``chrome`` (trace.json.gz) or ``none``.
        memory_snapshot
            Also write memory_snapshot.pickle of the fullest GPU, for PyTorch's memory_viz page.

        Returns
        -------
        Path
            The folder, with summary.json, summary.txt, scenario.resolved.yaml, report.html, the
            trace and the parquet files in frames/.
        """
        folder = self.folder() if directory is None else Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        with collector_at_ease():
            self._write_all(folder, trace)
            if memory_snapshot:
                self._write_snapshot(folder)
        return folder

    def _write_all(self, folder: Path, trace: TraceFormat) -> None:
        from raysim.report import html

        _remove_old(folder)
        _write_text(folder / "summary.json", summary_json(self.summary))
        _write_text(folder / "summary.txt", str(self))
        if self.scenario is not None:
            _write_text(folder / "scenario.resolved.yaml", self._yaml_in(folder))
        _write_text(folder / "report.html", html.render(self))
        if self.records is not None:
            self._write_records(folder, trace)
        if self.program is not None and trace != "none":
            _write_trace(self.program.trace(), folder, trace)
            self.program.write(folder)

    def _write_snapshot(self, folder: Path) -> None:
        from raysim.results import memory_snapshot

        history = memory_snapshot.fullest(self.histories)
        memory_snapshot.write(history, folder / _SNAPSHOT)

    def _yaml_in(self, folder: Path) -> str:
        located: Located | None = self.scenario if self.program is not None else None  # type: ignore[assignment]
        return self.scenario_yaml if located is None else yaml_text(located.resolved_in(folder))

    def _write_records(self, folder: Path, trace: TraceFormat) -> None:
        assert self.records is not None
        _write_trace(self.records, folder, trace)
        (folder / "frames").mkdir(exist_ok=True)
        self.frames.write(folder / "frames")


def _write_trace(records: ColumnRecorder, folder: Path, trace: TraceFormat) -> None:
    from raysim.results.traces.chrome import write_chrome
    from raysim.results.traces.perfetto import write_pftrace

    if trace == "perfetto":
        write_pftrace(records, folder / _TRACES[trace])
    elif trace == "chrome":
        write_chrome(records, folder / _TRACES[trace])


def summary_json(summary: Mapping[str, Any]) -> str:
    """The text of ``summary.json``: strict, in the summary's own order, the same bytes always."""
    return json.dumps(_strict(summary), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def written(folder: Path) -> list[str]:
    """Names in a run's folder, in the order a person wants them; sub-folders end in ``/``."""
    order = ["report.html", *_TRACES.values(), _SNAPSHOT, "frames/", "summary.json", "summary.txt"]
    order += ["scenario.resolved.yaml", *_OF_PROGRAMS]
    return [name for name in order if (folder / name).exists()]


def _strict(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null; numpy scalars become Python's."""
    if isinstance(value, Mapping):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _remove_old(folder: Path) -> None:
    """Delete what a previous write may have left and this one may not overwrite."""
    for name in (*_TRACES.values(), _SNAPSHOT, *_OF_PROGRAMS):
        (folder / name).unlink(missing_ok=True)
    if not (folder / "frames").exists():
        return
    from raysim.results.ray.recorded import FRAMES

    for name in (*SCHEMA, *FRAMES):
        (folder / "frames" / f"{name}.parquet").unlink(missing_ok=True)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def yaml_text(value: Mapping[str, Any], *, flowing_lists: bool = False) -> str:
    """``value`` as block YAML of at most 100 columns, keys in their own order.

    ``flowing_lists``: lists as ``[a, b]``, not an entry per line.
    """
    import io

    from ruamel.yaml import YAML

    yaml = YAML(typ="rt")
    yaml.default_flow_style = False
    yaml.width = 100
    stream = io.StringIO()
    plain = _strict(value)
    yaml.dump(_flowing(plain) if flowing_lists else plain, stream)
    return stream.getvalue()


def _flowing(value: Any) -> Any:
    from ruamel.yaml.comments import CommentedSeq

    if isinstance(value, dict):
        return {key: _flowing(item) for key, item in value.items()}
    if isinstance(value, list):
        flowing = CommentedSeq(value)
        flowing.fa.set_flow_style()
        return flowing
    return value
