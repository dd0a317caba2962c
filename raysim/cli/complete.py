"""What TAB offers: scenarios, runs, the catalog, metrics, tables, keys and their values.

Asked by a script of the shell through typer's protocol, a process per TAB: so nothing is imported
that takes long. Keys come from the schema, which does, and are kept in the user's cache until a
file of the schema changes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from raysim import __version__

ASKED = "_RAYSIM_COMPLETE"
RUNS = Path("runs")
KINDS = ("gpus", "nics", "disks", "nodes", "models")
MEASURABLE = ("gpu", "host", "collectives", "ray", "disk", "step", "scripts", "memory")
TABLES = (
    "step", "goodput", "failures", "memory", "collectives", "links", "sensitivity", "inputs",
    "targets", "changes", "tasks", "actors", "objects", "nodes", "workers", "placement_groups",
)  # fmt: skip
SUFFIXES = {"scenario": (".yaml", ".yml", ".py"), "config": (".json",)}
MOST_VALUES = 24
Keys = dict[str, list[str]]


def begin() -> None:
    """Know typer's protocol, if it is a shell that asks."""
    if ASKED in os.environ:
        import typer.completion

        typer.completion.completion_init()  # type: ignore[attr-defined]


def scenarios(incomplete: str) -> list[str]:
    """Scenario folders and files, and folders on the way to them."""
    return list(_paths(incomplete, SUFFIXES["scenario"]))


def configs(incomplete: str) -> list[str]:
    """JSON files, and folders on the way to them."""
    return list(_paths(incomplete, SUFFIXES["config"]))


def _paths(incomplete: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    head, _, stem = incomplete.rpartition("/")
    folder = Path(f"{head}/" if head or incomplete.startswith("/") else ".")
    before = incomplete[: len(incomplete) - len(stem)]
    for path in _listed(folder):
        if not path.name.startswith(stem) or (path.name.startswith(".") and not stem):
            continue
        if path.is_dir():
            whole = ".yaml" in suffixes and (path / "scenario.yaml").is_file()
            yield f"{before}{path.name}{'' if whole else '/'}"
        elif path.suffix in suffixes:
            yield f"{before}{path.name}"


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def runs(incomplete: str) -> list[str]:
    """Folders in runs/, their names and their ids; other folders on the way to runs."""
    known = [p.parent for p in sorted(RUNS.glob("*/summary.json"))]
    names = [str(p) for p in known]
    if incomplete:
        names += [name for p in known for name in (p.name, p.name.rpartition("-")[2])]
    found = _starting(names, incomplete)
    return found or list(_paths(incomplete, ()))


def kinds(incomplete: str) -> list[str]:
    """Of the catalog."""
    return _starting(KINDS, incomplete)


def entries(ctx: typer.Context, incomplete: str) -> list[str]:
    """Of the kind that is on the line."""
    kind = str(ctx.params.get("kind") or "")
    if kind.rstrip("s") == "model":
        from raysim.models.huggingface import known_model_types

        return _starting(known_model_types(), incomplete)
    return _catalog(kind.rstrip("s"), incomplete)


def nodes(incomplete: str) -> list[str]:
    """Nodes of the catalog."""
    return _catalog("node", incomplete)


def _catalog(kind: Any, incomplete: str) -> list[str]:
    from raysim.hardware import catalog

    known = catalog.names(kind) if f"{kind}s" in KINDS else []
    return _starting(known, incomplete)


def metrics(incomplete: str) -> list[str]:
    """What can be limited, made small or large."""
    from raysim.scenario.targets import METRICS

    return _starting(METRICS, incomplete)


def limits(incomplete: str) -> list[str]:
    """A metric, to be followed by a limit."""
    return [f"{name} <= " for name in metrics(incomplete)]


def tables(incomplete: str) -> list[str]:
    """Of ``raysim show``."""
    return _starting(TABLES, incomplete)


def measurable(incomplete: str) -> list[str]:
    """Of ``raysim measure``."""
    return _starting(MEASURABLE, incomplete)


def _starting(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


# ---- keys of scenarios ---------------------------------------------------------------------------


def assignments(incomplete: str) -> list[str]:
    """``KEY=`` a level of the key at a time; then its values, where they are words."""
    key, equals, value = incomplete.partition("=")
    if equals:
        before, comma, last = value.rpartition(",")
        return [
            f"{key}={before}{comma}{word}"
            for word in _starting(_keys().get(key, ()), last)
        ]  # fmt: skip
    return [f"{k}=" if not k.endswith(".") else k for k in keys(incomplete)]


def changes(incomplete: str) -> list[str]:
    """``FAULT=``: what may happen to a cluster that runs."""
    from raysim.scenario.schema_program import FaultSection

    before, comma, last = incomplete.rpartition(",")
    settings = FaultSection.model_fields.keys() - {"at"}
    return [f"{before}{comma}{name}=" for name in _starting(sorted(settings), last)]


def keys(incomplete: str) -> list[str]:
    """Keys of scenarios, a level at a time."""
    depth = incomplete.count(".")
    found: dict[str, None] = {}
    known = _keys()
    for key in known:
        if not key.startswith(incomplete):
            continue
        parts = key.split(".")
        if len(parts) == depth + 1:
            below = any(other.startswith(f"{key}.") for other in known)
            found[f"{key}." if below else key] = None
    return list(found)


def _keys() -> Keys:
    """Keys with their words, from the cache or the schema."""
    import raysim.scenario

    sources = sorted(Path(str(raysim.scenario.__file__)).parent.glob("schema*.py"))
    stamp = f"{__version__} {max(p.stat().st_mtime_ns for p in sources)} {len(sources)}"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(base) / "raysim" / "keys.json"
    try:
        kept = json.loads(cache.read_text(encoding="utf-8"))
        if kept["stamp"] == stamp:
            found: Keys = kept["keys"]
            return found
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = _keys_of_schema()
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps({"stamp": stamp, "keys": found}), encoding="utf-8")
    except OSError:
        pass  # then the next TAB is as slow
    return found


def _keys_of_schema() -> Keys:
    from raysim.cli.check import json_schema
    from raysim.cli.check import keys as keys_of

    found: Keys = {}
    for path, entry in keys_of(json_schema()):
        key = path.removeprefix("jobs.")
        if "*" not in key and key != "jobs":
            found[key] = list(dict.fromkeys([*found.get(key, []), *_words(entry)]))
    return {key: words[:MOST_VALUES] for key, words in found.items()}


def _words(entry: dict[str, Any]) -> Iterator[str]:
    """Values of a key that are words: alternatives, or true and false."""
    for option in entry.get("anyOf") or [entry]:
        yield from map(str, option.get("enum", ()))
        if "const" in option:
            yield str(option["const"])
        if option.get("type") == "boolean":
            yield from ("true", "false")


# ---- scripts for the shells ----------------------------------------------------------------------

BASH = r"""# bash: source <(raysim completion bash)
_raysim_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n'
    local current="${line##*[[:space:]]}"
    COMPREPLY=($(_RAYSIM_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \
        _TYPER_COMPLETE_ARGS="$line" "$1" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
    # Readline replaces only what follows the last "=" of a word.
    if [[ $current == *=* && $COMP_WORDBREAKS == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${current%=*}="}")
    fi
    [[ ${COMPREPLY[0]} == *[=./] ]] && compopt -o nospace
    return 0
}
complete -o default -F _raysim_completion raysim
"""

ZSH = r"""#compdef raysim
# zsh, after compinit: source <(raysim completion zsh)
_raysim() {
    local line="${(j: :)words[1,$CURRENT]}" found
    local -a whole partly
    for found in ${(f)"$(_RAYSIM_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \
        _TYPER_COMPLETE_ARGS="$line" "${words[1]}" 2>/dev/null)"}; do
        found="${found%%$'\t'*}"
        [[ $found == *[=./] ]] && partly+=("$found") || whole+=("$found")
    done
    (( $#partly )) && compadd -Q -S '' -- $partly
    (( $#whole )) && compadd -Q -- $whole
    (( $#partly + $#whole )) || _files
}
compdef _raysim raysim
"""

FISH = r"""# fish: raysim completion fish > ~/.config/fish/completions/raysim.fish
function __raysim_complete
    set -lx _RAYSIM_COMPLETE complete_fish
    set -lx _TYPER_COMPLETE_FISH_ACTION get-args
    set -lx _TYPER_COMPLETE_ARGS (commandline -cp)
    set -l found (raysim 2>/dev/null | string match --regex '.+')
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command raysim --no-files --arguments '(__raysim_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


class Shell(StrEnum):
    """Shells that completion is for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script that makes TAB complete raysim's commands."""
    from raysim.cli import terminal

    terminal.say(SCRIPTS[shell.value])
