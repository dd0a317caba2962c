"""The manual: what ``raysim VERB --help`` says beyond arguments and options.

Examples are run by ``tests/unit/test_cli_help.py``; an option that no heading names comes last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GROUPS = ("Predict", "Look", "Plan", "Real machines", "Shell")
DONE = "Done."
USER = "A file or a flag is wrong: one line per problem."
OURS = "A fault of raysim: the traceback, and the command that replays it."
EXITS = {
    "0": "Done, and all targets are met.",
    "1": "Done, but the answer is no: a target is missed, it does not fit, the program fails.",
    "2": USER,
    "3": OURS,
    "130": "Interrupted by Ctrl-C: says where it was, and what is kept.",
}
"""Of all verbs."""
LOGGING = "Logging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Of one verb."""

    group: str
    about: tuple[str, ...] = ()
    """Paragraphs below the one line that says what the verb does."""
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By heading."""
    files: dict[str, str] = field(default_factory=dict)
    """What is written, and what it is for."""
    missed: str = ""
    """When the exit code is 1; empty: never."""
    interrupted: str = ""
    """What Ctrl-C leaves; empty: nothing worth a line."""
    examples: dict[str, str] = field(default_factory=dict)
    """Command to what it is for."""
    see: tuple[str, ...] = ()

    @property
    def exits(self) -> dict[str, str]:
        """Exit codes and when."""
        codes = {"0": DONE, "1": self.missed, "2": USER, "3": OURS, "130": self.interrupted}
        return {code: when for code, when in codes.items() if when}


PAGES = {
    "run": Page(
        group="Predict",
        about=(
            ("A scenario is a training job, a Ray program or a job of one of Ray's libraries, with "
            "the cluster it runs on. A Python script that uses Ray runs unmodified, on virtual "
            "time; --cluster says on what."),
            ("A training script that knows no Ray runs as its launcher would start it, whose whole "
            "command line stands in SCENARIO's place: deepspeed, torchrun, accelerate launch, "
            "fabric run or python, their flags, the script and its arguments. Without --cluster "
            "that is on hgx-h100-8."),
            ("On a terminal two lines say what is being done, the virtual clock, the time left and "
            "events per second. They change no prediction."),
        ),
        options={
            "What is predicted": ("--set", "--seed", "--until", "--profile"),
            "Of a Ray program": ("--cluster", "--compute"),
            "What is printed and written": (
                "--out", "--quiet", "--json", "--no-trace", "--trace-format", "--memory-snapshot",
            ),
            "For doubt": ("--check",),
        },
        files={
            "runs/NAME-ID/report.html": "the report as a page, without network",
            "summary.json, summary.txt": "all numbers, units in their names; the printed report",
            "scenario.resolved.yaml": "replays this run",
            "trace.pftrace": "for ui.perfetto.dev; trace.json.gz with --trace-format chrome",
            "frames/*.parquet": "tables for pandas",
            "timeline.json, output.txt": "of a Ray program: as `ray timeline`; what it printed",
        },
        missed="A target is missed, the job does not fit into memory, or the program fails.",
        interrupted="Ctrl-C: says where the run was; nothing is written.",
        examples={
            "raysim run scenarios/mlp_pipeline": "a training job",
            "raysim run scenarios/bert_mrpc_zero3 --set train.micro_batch=16 -q":
                "one key changed, the verdict alone",
            "raysim run scenarios/ray_map_reduce/shuffle.py --compute declared --until 10s":
                "a Ray program, its first ten seconds",
            "raysim run -q torchrun --nproc-per-node 8 scenarios/gpt2_torchrun/train.py --steps 5":
                "a training script, as torchrun would start it",
            "raysim run scenarios/mlp_pipeline --json | jq .step.seconds": "for scripts",
        },
        see=("check", "show", "open", "compare", "plan"),
    ),
    "memory": Page(
        group="Predict",
        about=(
            ("Reads a Hugging Face config.json and nothing else, and plays nothing: seconds for "
            "the largest model."),
        ),
        options={
            "Machines": ("--node", "--nodes"),
            "Layouts to show": (
                "--zero-stage", "--offload", "--checkpointing", "--micro-batch", "--seq-len",
                "--peft",
            ),
            "What is printed": ("--quiet", "--json"),
            "As a guard": ("--fail-over",),
        },
        missed="Nothing fits, or nothing is within --fail-over.",
        examples={
            "raysim memory scenarios/llama3_8b_zero3/config.json": "on one node of eight H100",
            "raysim memory scenarios/llama31_70b_lora/config.json --peft "
            "scenarios/llama31_70b_lora/adapter_config.json": "LoRA",
            "raysim memory scenarios/llama3_8b_zero3/config.json --node p4d.24xlarge --nodes 2 "
            "--zero-stage 3": "ZeRO-3 on other machines",
            "raysim memory scenarios/bert_mrpc_zero3/config.json --fail-over 40GiB":
                "a guard in a pipeline",
        },
        see=("catalog", "init", "plan"),
    ),
    "check": Page(
        group="Predict",
        about=("Nothing is simulated. What is printed is a scenario, and means the same.",),
        options={
            "The scenario": ("--set",),
            "About keys": ("--explain", "--schema"),
            "What is printed": ("--quiet",),
        },
        examples={
            "raysim check scenarios/llama3_8b_zero3": "every default taken",
            "raysim check --explain train.micro_batch": "what a key means",
            "raysim check scenarios/mlp_pipeline --set train.micro_batch=8 -q": "is it right?",
        },
        see=("run", "init"),
    ),
    "init": Page(
        group="Predict",
        about=(
            ("Your files are copied unchanged; scenario.yaml says what they leave open, each line "
            "with a comment. Without files it is Llama 3.1 8B under ZeRO-3 on two nodes of eight "
            "H100."),
        ),
        options={"Your files": ("--from", "--deepspeed", "--cluster"),
                 "What is printed": ("--quiet",)},
        files={"NAME/scenario.yaml": "what to predict, and on what",
               "NAME/...": "your files, or the starter's"},
        examples={
            "raysim init first": "a starter",
            "raysim init mine --from scenarios/bert_mrpc_zero3/config.json "
            "--deepspeed scenarios/bert_mrpc_zero3/ds_config.json": "around your own files",
        },
        see=("check", "run"),
    ),
    "show": Page(
        group="Look",
        about=(
            ("A RUN is a folder, its name or id in runs/, or left out: the last one. Plans are "
            "shown as well."),
        ),
        options={"Any run": ("--table", "--quiet"), "A training job": ("--tree",),
                 "A Ray program": ("--at", "--why")},
        examples={
            "raysim show": "the last run again",
            "raysim show --table inputs": "every input, with its basis and source",
            "raysim show --tree": "the model's modules with their time",
        },
        see=("open", "compare", "run"),
    ),
    "compare": Page(
        group="Look",
        about=(
            ("Keys of the scenarios, metrics, parts of the step and categories of memory; what "
            "differs most first. What would one change do? Run it with and without --set, and "
            "compare the two folders."),
        ),
        options={"Rows": ("--by",), "A page": ("--html",)},
        examples={
            "raysim compare runs/one runs/two": "two runs, by folder",
            "raysim compare runs/one runs/two --by memory": "what of memory differs",
            "raysim compare runs/one runs/two --html difference.html": "one step of each as a page",
        },
        see=("run", "show"),
    ),
    "what-if": Page(
        group="Predict",
        about=(
            ("Plays a Ray program to a moment, splits the process there, and goes on once for each "
            "--change and once without: what happens before is played once. A branch in which a "
            "node fails is, to the last event, the run whose scenario says so under faults."),
            ("--save writes the run as it stands: its scenario, the moment, and a digest of all "
            "that happened. `raysim run FILE` and `raysim what-if FILE` come to the same moment "
            "again, or say that it is not the same run."),
        ),
        options={
            "What happens, and when": ("--at", "--change", "--save"),
            "What is predicted": ("--set", "--seed"),
            "Of a script": ("--cluster", "--compute"),
            "How, and what is printed": ("--jobs", "--quiet", "--json"),
        },
        files={"FILE of --save": "a scenario that stands at a moment of its run"},
        missed="A branch has no result; the others are printed.",
        examples={
            "raysim what-if scenarios/ray_node_failure --at 10s --change fail_node=1 "
            "--change preempt=1,notice=5s": "one more node is lost, in two ways",
            "raysim what-if scenarios/ray_shared_cluster --at 2min "
            "--change cluster.spot.max_replicas=1 -q": "fewer spot pods from now on",
            "raysim what-if scenarios/ray_node_failure --at 10s --save ten_seconds.yaml":
                "keep the moment",
        },
        see=("run", "compare", "plan"),
    ),
    "open": Page(
        group="Look",
        about=("Where there is no browser, the path that is printed can be copied.",),
        examples={"raysim open": "the last run's page", "raysim open runs/one": "another one's"},
        see=("show", "run"),
    ),
    "catalog": Page(
        group="Look",
        about=(
            ("Every number says whether it is measured, from a datasheet or assumed, and where "
            "it is from."),
        ),
        examples={
            "raysim catalog": "how many of each kind",
            "raysim catalog nodes": "all nodes, with prices",
            "raysim catalog gpus H100-SXM-80GB": "one entry, with sources",
        },
        see=("check", "memory"),
    ),
    "plan": Page(
        group="Plan",
        about=(
            ("Tries every point of a space: sizes of the cluster, kinds of node, ZeRO stages, "
            "micro-batches, anything --set takes. Of more than 128 points that may fit, each is "
            "estimated, and those that may be chosen are played."),
            "Trials are kept as they come: the same command goes on where it was interrupted.",
        ),
        options={
            "What to try": ("--vary", "--set", "--max-gpus"),
            "What is best": ("--minimize", "--maximize", "--quantile"),
            "What must hold": ("--subject-to", "--days", "--budget", "--likely"),
            "Where points are tried": ("--jobs", "--on", "--address"),
            "What is printed and written": ("--top", "--out", "--quiet", "--json"),
        },
        files={
            "runs/plan-NAME-ID/trials.parquet": "every point, and what came of it",
            "summary.json": "the choice, the front, why others are out",
            "best/": "scenario.yaml, ds_config.json, cluster file and launch.sh of the choice",
            "report.html": "a page of all that was tried",
        },
        missed="Nothing meets the targets.",
        interrupted="Ctrl-C: the best so far; all trials are kept.",
        examples={
            "raysim plan scenarios/bert_mrpc_zero3 --vary train.zero_stage=1,3 "
            "--vary train.micro_batch=4,8": "two keys",
            "raysim plan scenarios/bert_mrpc_zero3 --vary train.micro_batch=4,8 "
            "--maximize tokens_per_s --subject-to 'gpu_mem_peak <= 50%'": "another aim, a limit",
            "raysim plan scenarios/ray_map_reduce --vary cluster.worker.replicas=1,2 "
            "--minimize seconds": "a Ray program",
        },
        see=("run", "memory", "show"),
    ),
    "measure": Page(
        group="Real machines",
        about=(
            ("WHAT is gpu, host, collectives, ray, disk, step, scripts or memory. Needs the extra "
            "`real`. "
            "Rows that are there are not measured again."),
        ),
        options={"How long": ("--budget", "--quick"), "Where": ("--device", "--backend", "--ranks"),
                 "What is read, printed and written": ("--cases", "--out", "--quiet")},
        files={"validation/data/HARDWARE/DATE/*.csv": "rows, as they come",
               "meta.yaml": "the machine, versions, the command"},
        interrupted="Ctrl-C: what was measured is kept; the same command goes on.",
        examples={
            "raysim measure host --quick --out measured/here": "does it work here?",
            "raysim measure gpu --budget 10min": "kernels of this GPU",
            "torchrun --nproc-per-node 8 -m raysim measure collectives": "NCCL of this node",
        },
        see=("calibrate", "validate"),
    ),
    "validate": Page(
        group="Real machines",
        about=(
            ("CASES are workload files, folders, parts of their names, or published cases; all by "
            "default. Runs at the top of the repository."),
        ),
        options={"The measured side": ("--against", "--real", "--address", "--budget", "--repeat"),
                 "The predicted side": ("--profile",),
                 "What is written": ("--out", "--intervals")},
        files={"validation/REPORT.md, parity.svg": "predicted and measured, error per row"},
        examples={
            "raysim validate ray_serve --out checked": "one set of published rows",
            "raysim validate --real --budget 10min": "run the workloads on real Ray first",
        },
        see=("measure", "calibrate"),
    ),
    "calibrate": Page(
        group="Real machines",
        about=("Prints the error of every row before and after, also of those not fitted.",),
        options={"What is fitted": ("--fit", "--family", "--workloads", "--hold"),
                 "How, and what is written": ("--processes", "--out")},
        files={"profile.yaml": "constants of the machine: run --profile, validate --profile"},
        examples={
            "raysim calibrate measured/here": "after `raysim measure ray`",
            "raysim calibrate measured/here --hold data --out here.yaml": "some rows to judge by",
        },
        see=("measure", "run", "validate"),
    ),
    "completion": Page(
        group="Shell",
        about=(
            ("TAB then completes verbs, options, scenario folders, runs and their ids, entries of "
            "the catalog, metrics, tables, and keys of scenarios with their values."),
            ("bash: add `source <(raysim completion bash)` to ~/.bashrc. zsh: the same with zsh, "
            "after compinit. fish: `raysim completion fish > "
            "~/.config/fish/completions/raysim.fish`."),
        ),
        examples={"raysim completion bash": "the script"},
    ),
}  # fmt: skip
