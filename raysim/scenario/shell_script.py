"""The launcher's command line in a shell script, such as the one that ``sbatch`` is given.

What the script assigns is put in, and of Slurm's variables those that its ``#SBATCH`` lines say.
Nothing is executed: of what comes from outside or from a command, addresses, ports and ranks of
nodes have no effect here and are filled in; anything else is refused by name.

Not modelled: branches and loops (each line is read once), processes that ``srun`` starts by itself,
without a launcher of torch's or DeepSpeed's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from raysim.errors import Location, Problem, ScenarioError
from raysim.rayapi.launch.commands import TORCH_PORT, read_command
from raysim.scenario.arguments import MAX_BYTES, Variables, unknown_variable
from raysim.scenario.documents import printable, read_text

_LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "fabric", "python", "python3")
_NO_TRAINING = (["-c"], ["-V"], ["--version"], ["-m", "pip"])
_ALONE = 2
"""Words at most of a line that assigns: ``export`` and the rest."""
_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-J": "--job-name",
          "-G": "--gpus"}  # fmt: skip
_ASSIGNED = re.compile(r"^(?:(?:export|local|declare)\s+)?([A-Za-z_]\w*)=(.*)$", re.DOTALL)
_ARRAY = re.compile(r"=\(([^()]*)\)", re.DOTALL)
_OF_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_SUM = re.compile(r"\$\(\(([^()]*)\)\)")
_COMMAND = re.compile(r"\$\([^()]*\)|`[^`]*`")
_REDIRECTED = re.compile(r"\s(?:\d|&)?>>?\s*[^\s;|&]+|\s\d?>&\d?")
_SEPARATES = re.compile(r"[;&|()<>]+")
_FILLED = (("rank", "0"), ("port", str(TORCH_PORT)), ("addr", "node-0"), ("_ip", "node-0"),
           ("endpoint", f"node-0:{TORCH_PORT}"), ("rdzv_id", "0"))  # fmt: skip
"""By what a flag's name has: what the script need not say."""


def launch_of(path: Path, args: Sequence[str] = ()) -> list[str]:
    """The words of the one training command in it; ``args`` are the script's own, ``$@``.

    Raises
    ------
    ScenarioError
        There is none, or several; it rests on what the script does not say.
    """
    shown = printable(str(path))
    text, _ = read_text(path, shown, MAX_BYTES)
    slurm = _directives(text)
    known = Variables(values=_of_slurm(slurm))
    found: list[tuple[int, list[str], bool]] = []
    for number, line in _lines(text):
        code = _expanded(line, known, args)
        if (assigned := _ASSIGNED.match(code)) and len(_words(code)) <= _ALONE:
            known.values[assigned[1]] = " ".join(_words(assigned[2]))
            continue
        found += [
            (number, words[at:], "srun" in words[:at])
            for words in _commands(code) if (at := _launcher_at(words)) is not None
        ]  # fmt: skip
    trains = [f for f in found if Path(f[1][0]).name not in ("python", "python3")] or found
    different = {tuple(words): (number, by) for number, words, by in trains}
    if len(different) != 1:
        raise ScenarioError(_none_or_several(different, shown))
    ((only, (number, by_srun)),) = different.items()
    where = Location(file=shown, line=number)
    given = _filled(only, where)
    tasks = _tasks(slurm)
    if by_srun and tasks > 1 and read_command(given).kind == "python":
        raise ScenarioError(Problem(where=where, message=_by_srun(slurm, given)))
    return given


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines with the number of their first, without comments; arrays on one."""
    number, waiting = 0, ""
    for at, line in enumerate(text.splitlines(), start=1):
        code = re.sub(r"(^|\s)#.*$", r"\1", line).rstrip()
        number = number if waiting else at
        goes_on = code.endswith("\\")
        waiting += code.removesuffix("\\") + " "
        if goes_on or waiting.count("(") > waiting.count(")") or waiting.count('"') % 2:
            continue
        yield number, waiting.strip()
        waiting = ""
    yield number, waiting.strip()


def _expanded(line: str, known: Variables, args: Sequence[str]) -> str:
    """What is known put in; an array as its words, a command's output as an unknown variable."""
    line = _SUM.sub(lambda m: str(known.number(m[1]) or m[0]), _REDIRECTED.sub(" ", line))
    line = _ARRAY.sub(lambda m: f"={shlex.quote(' '.join(m[1].split()))}", line)
    line = re.sub(r'"?\$[@*]"?', lambda _: shlex.join(args), line)
    line = _OF_ARRAY.sub(r"${\1}", line).replace('"${', "${").replace('}"', "}")
    return known.expand(_COMMAND.sub("$COMMAND", line))


def _words(code: str) -> list[str]:
    lexer = shlex.shlex(code, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:  # a quotation that goes on, in a here-document
        return []


def _commands(code: str) -> Iterator[list[str]]:
    """Simple commands of a line; of ``bash -c '...'`` those within."""
    command: list[str] = []
    for word in [*_words(code), ";"]:
        if not _SEPARATES.fullmatch(word):
            command.append(word)
            continue
        yield command
        for before, inner in pairwise(command):
            if before == "-c" and " " in inner and command[0] not in ("python", "python3"):
                yield from (["srun", *c] if "srun" in command else c for c in _commands(inner))
        command = []


def _launcher_at(words: Sequence[str]) -> int | None:
    for at, word in enumerate(words):
        if Path(word).name in _LAUNCHERS and at + 1 < len(words):
            rest = words[at + 1 :]
            return None if any(rest[: len(w)] == w for w in _NO_TRAINING) else at
    return None


def _filled(words: Sequence[str], where: Location) -> list[str]:
    """With addresses and ranks of nodes that only the real cluster says.

    Raises
    ------
    ScenarioError
        Anything else is unknown.
    """
    filled: list[str] = []
    for at, word in enumerate(words):
        unknown = unknown_variable(word)
        if unknown is None:
            filled.append(word)
            continue
        flag, equals, _ = word.partition("=")
        name = (flag if equals else words[at - 1]).replace("-", "_")
        value = next((v for part, v in _FILLED if name.startswith("__") and part in name), None)
        if value is None:
            what = "a command's output" if unknown == "COMMAND" else f"${unknown}"
            message = f"{word!r} rests on {what}, which the script does not say; write the value"
            raise ScenarioError(Problem(message=message, where=where))
        filled.append(f"{flag}={value}" if equals else value)
    return filled


def _directives(text: str) -> dict[str, str]:
    """What ``#SBATCH`` lines ask for, by long names."""
    found: dict[str, str] = {}
    for line in _DIRECTIVE.findall(text):
        words = shlex.split(line, comments=True)
        for at, word in enumerate(words):
            name, equals, value = word.partition("=")
            if name.startswith("-"):
                nexts = words[at + 1] if at + 1 < len(words) else ""
                found[_SHORT.get(name, name)] = value if equals else nexts
    return found


def _count(text: str | None) -> int | None:
    """Of ``8``, ``h100:8``, ``gpu:h100:8`` or ``2-4``, the least."""
    match = re.search(r"(\d+)(?:-\d+)?$", text or "")
    return None if match is None else int(match[1])


def _nodes(slurm: Mapping[str, str]) -> int:
    return _count(slurm.get("--nodes")) or 1


def _tasks(slurm: Mapping[str, str]) -> int:
    """Processes that ``srun`` starts."""
    each = _count(slurm.get("--ntasks-per-node"))
    return _count(slurm.get("--ntasks")) or _nodes(slurm) * (each or 1)


def _of_slurm(slurm: Mapping[str, str]) -> dict[str, str]:
    """Slurm's output variables on the first node; none where nothing is said."""
    if not slurm:
        return {}
    nodes, tasks = _nodes(slurm), _tasks(slurm)
    gres = slurm.get("--gres") if "gpu" in slurm.get("--gres", "") else None
    total = _count(slurm.get("--gpus"))
    gpus = _count(slurm.get("--gpus-per-node") or gres) or (total and total // nodes)
    said = {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks, "SLURM_NTASKS_PER_NODE": max(1, tasks // nodes),
        "SLURM_GPUS_ON_NODE": gpus, "SLURM_GPUS_PER_NODE": gpus,
        "SLURM_CPUS_PER_TASK": _count(slurm.get("--cpus-per-task")),
        "SLURM_PROCID": 0, "SLURM_NODEID": 0, "SLURM_LOCALID": 0, "SLURM_JOB_ID": 1,
        "SLURM_JOBID": 1, "SLURM_JOB_NAME": slurm.get("--job-name"),
    }  # fmt: skip
    return {name: str(value) for name, value in said.items() if value is not None}


def _none_or_several(found: Mapping[tuple[str, ...], tuple[int, bool]], shown: str) -> Problem:
    if not found:
        message = (
            "starts no training: no torchrun, deepspeed, accelerate launch or python SCRIPT in it"
        )
        return Problem(message=message, where=Location(file=shown))
    lines = ", ".join(str(number) for number, _ in found.values())
    first = shlex.join(next(iter(found)))
    message = f"starts several programs (lines {lines}); run one: `raysim run {first}`"
    return Problem(message=message, where=Location(file=shown))


def _by_srun(slurm: Mapping[str, str], words: Sequence[str]) -> str:
    nodes, tasks = _nodes(slurm), _tasks(slurm)
    script = shlex.join(words[1:])
    launcher = f"torchrun --nnodes {nodes} --nproc-per-node {max(1, tasks // nodes)}"
    return (
        f"srun itself starts the {tasks} processes, each told who it is by SLURM_PROCID, which is "
        f"not played; `raysim run {launcher} {script}` is, where the script reads RANK"
    )
