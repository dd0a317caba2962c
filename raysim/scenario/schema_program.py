"""Scenarios that run Ray programs on a cluster, with things going wrong.

A program is a script, unmodified, or a generated workload (``schema_workload``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from raysim.scenario.quantities import Bytes, Count, Seconds
from raysim.scenario.schema import RecordSection, ResolvedSection
from raysim.scenario.schema_cluster import ClusterSection
from raysim.scenario.schema_data import DataSection, FilesSection
from raysim.scenario.schema_exoshuffle import ExoshuffleSection
from raysim.scenario.schema_llm import LlmSection
from raysim.scenario.schema_rl import RlSection
from raysim.scenario.schema_serve import ServeSection
from raysim.scenario.schema_trainer import TrainerSection
from raysim.scenario.schema_tune import TuneSection
from raysim.scenario.schema_workload import WorkloadSection
from raysim.scenario.section import Condition, FileOrMapping, Section, shorthand

Share = Annotated[float, Field(gt=0, le=1)]
NodeIndex = Annotated[int, Field(ge=0, le=1_000_000)]


class ScriptSection(Section):
    """A Ray program, run for its values while virtual time pays."""

    path: str = Field(min_length=1, description="The script, unmodified.")
    args: list[str] = Field(default_factory=list, description="Its command line.")
    launcher: str | None = Field(
        None,
        min_length=1,
        description="Of a training script that knows no Ray: what starts its ranks, with flags and "
        "without the script, such as `deepspeed --num_gpus 4` or `torchrun --nproc-per-node 8`.",
    )
    compute: str = Field(
        "measured",
        min_length=1,
        description="Time of user functions. measured: on this host, scaled; declared: only what "
        "raysim.cost and time.sleep say; or a CSV file of an earlier run, replayed exactly.",
    )


class RayJobSection(Section):
    """A KubeRay RayJob, unmodified."""

    path: str = Field(min_length=1, description="The manifest.")
    compute: str = Field("measured", min_length=1, description="As of a script.")


class FaultSection(Section):
    """One thing that goes wrong at one time; one of the kinds below."""

    at: Seconds = Field(description="Virtual time, such as 3h.")
    fail_node: NodeIndex | None = Field(None, description="Power off this node, silently.")
    restart_node: NodeIndex | None = Field(None, description="Power this node on again.")
    kill_raylet: NodeIndex | None = Field(None, description="SIGKILL to this node's raylet.")
    kill_worker_on: NodeIndex | None = Field(None, description="SIGKILL to a worker of this node.")
    partition: NodeIndex | None = Field(None, description="Cut this node off the network.")
    heal: NodeIndex | None = Field(None, description="Join this node to the network again.")
    preempt: NodeIndex | None = Field(None, description="Take this spot node back after `notice`.")
    notice: Seconds | None = Field(
        None, description="Of preempt: how long before; 2 minutes by default."
    )
    slow_links: NodeIndex | None = Field(None, description="Leave this node `share` of its NICs.")
    fill_disk: NodeIndex | None = Field(None, description="Fill `share` of this node's disks.")
    share: Share = Field(1.0, description="Of slow_links and fill_disk.")
    kill_gcs: bool = Field(False, description="SIGKILL to the GCS server.")
    restart_after: Seconds | None = Field(
        None,
        description="Of kill_gcs: when it comes back; it needs gcs_storage: redis. Of fail_node: "
        "when the node is back; the head's brings the GCS with it.",
    )

    @property
    def kind(self) -> str:
        """The one that was given."""
        return self._given()[0]

    def _given(self) -> list[str]:
        settings = ("at", "notice", "share", "restart_after", "kill_gcs")
        kinds = [
            name
            for name in type(self).model_fields
            if name not in settings and getattr(self, name) is not None
        ]
        return [*kinds, *(["kill_gcs"] if self.kill_gcs else [])]

    @model_validator(mode="after")
    def _one_kind(self) -> FaultSection:
        given = self._given()
        if len(given) != 1:
            said = " and ".join(given) if given else "nothing but a time"
            raise ValueError(f"give one thing that goes wrong, got {said}")
        return self


class RaySection(Section):
    """How Ray is started."""

    config: dict[str, Any] = Field(
        default_factory=dict,
        description="Ray's settings by Ray's names, as RAY_<name> sets them: gcs_storage: redis.",
    )
    object_store_memory: Bytes | None = Field(
        None, description="Of every node's store, such as 5GiB; by default 30 % of its memory."
    )
    node_speed: Annotated[float, Field(gt=0, le=100)] = Field(
        1.0,
        description="Speed of a core of the cluster over this host's, for measured time.",
    )
    autoscaler: Literal["v1", "v2"] | None = Field(
        None, description="Version of the autoscaler; by default what the cluster's file says."
    )


class SpotSection(Section):
    """Nodes of a group that the cloud takes back."""

    per_hour: Annotated[float, Field(gt=0, le=3600)] = Field(
        description="How many of a hundred nodes go in an hour, over a hundred: 0.05."
    )
    notice: Seconds | None = Field(
        None, description="How long before it says so; 2 minutes by default, 0s for not at all."
    )


class StartSection(Section):
    """How long machines of a group take to come: medians of lognormal delays."""

    pods: Literal["warm", "cold"] | None = Field(
        None,
        description="warm: the machine is there and has the image; cold: it is added and pulls it.",
    )
    request: Seconds | None = Field(None, description="Until the cloud lists the machine.")
    provision: Seconds | None = Field(None, description="Until the machine runs.")
    image_pull: Seconds | None = Field(None, description="Until it has the image.")
    ray_install: Seconds | None = Field(None, description="Setup commands; none in a pod.")
    ray_start: Seconds | None = Field(None, description="`ray start`.")
    none_from: Seconds | None = Field(None, description="From when the cloud has none of them.")
    none_until: Seconds | None = Field(None, description="Until when; for ever by default.")


_SETTINGS = frozenset(
    {"name", "at", "copies", "every", "entrypoint_num_cpus", "entrypoint_num_gpus", "env_vars",
     "backoff_limit", "active_deadline"}
)  # fmt: skip
"""Of a job of any kind."""


class ProgramJobSection(Section):
    """One Ray program: a script, a workload to be generated, or a job of one of Ray's libraries.

    Several are submitted to the cluster, each at its time, as by `ray job submit`.
    """

    script: Annotated[ScriptSection, shorthand("path")] | None = Field(
        None, description="A Ray script."
    )
    workload: WorkloadSection | None = Field(
        None, description="Tasks, actors and objects by numbers, in place of a script."
    )
    rayjob: Annotated[RayJobSection, shorthand("path")] | None = Field(
        None,
        description="A KubeRay RayJob, unmodified: its entrypoint, limits and retries. Its script "
        "is beside it or in a ConfigMap of its file; its cluster is given by `cluster.from`.",
    )
    data: DataSection | None = Field(
        None, description="A dataset of Ray Data, and who takes its rows."
    )
    exoshuffle: ExoshuffleSection | None = Field(
        None, description="A sort of terabytes by Exoshuffle-CloudSort."
    )
    tune: TuneSection | None = Field(None, description="A sweep of Ray Tune by numbers.")
    rl: RlSection | None = Field(None, description="PPO or IMPALA of RLlib by numbers.")
    llm: LlmSection | None = Field(None, description="An LLM served by Ray Serve LLM.")
    serve: ServeSection | None = Field(None, description="An application of Ray Serve by numbers.")
    trainer: TrainerSection | None = Field(
        None, description="Ray Train: a training job under its controller."
    )
    name: str | None = Field(
        None, min_length=1, description="Name; by default the script's or the workload's."
    )
    at: Seconds = Field(0.0, description="Of several jobs: when it is submitted.")
    copies: int = Field(1, ge=1, le=10_000, description="So many of it, `every` so long.")
    every: Seconds = Field(0.0, description="Between copies.")
    entrypoint_num_cpus: Annotated[float, Field(ge=0)] = Field(
        0.0, description="CPUs that its driver holds, on any node; 0: on the head, without."
    )
    entrypoint_num_gpus: Annotated[float, Field(ge=0)] = Field(0.0, description="GPUs likewise.")
    env_vars: dict[str, str] = Field(
        default_factory=dict, description="Variables of its environment, as in a runtime_env."
    )
    backoff_limit: int = Field(
        0, ge=0, le=1000, description="How often it is submitted again when it has failed."
    )
    active_deadline: Seconds | None = Field(
        None, description="It is stopped so long after it was submitted."
    )

    @property
    def library(self) -> str | None:
        """The key of one of Ray's libraries, if that is what was given."""
        own = {"script", "workload", "rayjob"}
        return next((k for k in self._given() if k not in own), None)

    @classmethod
    def _kinds(cls) -> list[str]:
        return [k for k in cls.model_fields if k not in _SETTINGS]

    def _given(self) -> list[str]:
        return [k for k in self._kinds() if getattr(self, k) is not None]

    @model_validator(mode="after")
    def _script_or_workload(self) -> ProgramJobSection:
        if len(self._given()) != 1:
            raise ValueError(f"give one of {', '.join(self._kinds())}")
        return self


class ProgramSection(Section):
    """The root of a scenario.yaml whose job is a Ray program."""

    raysim: Literal[1] = Field(1, description="Version of this file format.")
    name: str = Field(
        "program", min_length=1, max_length=100, description="Name of runs and reports."
    )
    description: str = Field("", description="For people.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of every random stream.")
    cluster: ClusterSection = Field(description="Nodes and the network between them.")
    profile: FileOrMapping | None = Field(
        None, description="Constants measured on the cluster's machines: raysim calibrate's file."
    )
    ray: RaySection = Field(default_factory=RaySection, description="How Ray is started.")
    jobs: list[ProgramJobSection] = Field(
        min_length=1, max_length=1000, description="What runs on the cluster."
    )
    files: list[FilesSection] = Field(
        default_factory=list,
        description="What scripts read with ray.data.read_*() and is not on this machine.",
    )
    starts: dict[str, StartSection] = Field(
        default_factory=dict, description="How long machines take to come, by node group."
    )
    spot: dict[str, SpotSection] = Field(
        default_factory=dict, description="Nodes that the cloud takes back, by node group."
    )
    faults: list[FaultSection] = Field(default_factory=list, description="What goes wrong, when.")
    until: Seconds | None = Field(None, description="Stop the run at this virtual time.")
    steps: Count | None = Field(
        None,
        description="Stop a script after so many optimizer steps of a training run; 0: at its end. "
        "By default one that a launcher starts is stopped when many were alike.",
    )
    targets: dict[str, Condition] = Field(
        default_factory=dict, description="Limits by metric, such as `seconds: <= 60`."
    )
    vary: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default_factory=dict, description="Values to search, by key; used by plan, ignored by run."
    )
    record: RecordSection | None = Field(None, description="What is recorded.")
    resolved: ResolvedSection | None = Field(None, description="Written by raysim; do not edit.")

    @field_validator("faults", mode="before")
    @classmethod
    def _faults_are_a_list(cls, said: Any) -> Any:
        if not isinstance(said, dict):
            return said
        own = said if said.keys() <= FaultSection.model_fields.keys() else {"fail_node": 1}
        one = ", ".join(f"{key}: {value}" for key, value in ({"at": "10s"} | own).items())
        raise ValueError(f"a list, what goes wrong at a time each: `faults: [{{{one}}}]`")
