"""What a training job expects of its machines: ``noise`` and ``failures``; how often to save."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from raysim.scenario.quantities import Seconds, Share, parse_duration
from raysim.scenario.section import Section
from raysim.workloads.failures import DETECT_S, REPLACEMENT_S

MOST_NODES = 1_000_000
_DETECT: Any = f"{DETECT_S:g}s"
_REPLACEMENT: Any = f"{REPLACEMENT_S / 60:g}min"


class WindowSection(Section):
    """When something holds; by default for the whole run."""

    from_: Seconds = Field(0.0, alias="from", description="From when on, since the launch.")
    for_: Seconds | None = Field(
        None, alias="for", description="For how long; by default to the end of the run."
    )


class AtNodeSection(WindowSection):
    """Something about one node."""

    node: int = Field(ge=0, lt=MOST_NODES, description="Its index among the nodes with GPUs.")


class SlowNodeSection(AtNodeSection):
    """A node slower than the others."""

    slowdown: float = Field(
        1.0, ge=1, le=1000, description="Its kernels take so much longer (throttling)."
    )
    host_slowdown: float = Field(
        1.0, ge=1, le=1000, description="Its Python, dispatch and CPU optimizer take longer."
    )


class LinkSection(AtNodeSection):
    """A NIC that runs degraded, flaps or is down."""

    nic: int | None = Field(None, ge=0, lt=1000, description="Its index; by default all NICs.")
    share: Share = Field(description="What is left of its rate; 0: down, which needs `for`.")

    @model_validator(mode="after")
    def _comes_back(self) -> LinkSection:
        if self.share == 0 and self.for_ is None:
            raise ValueError("a link that is down (share 0) needs `for`: until when")
        return self


class NoiseSection(Section):
    """How the machines of a job differ; by default they are all alike."""

    gpu_cv: Share = Field(
        0.0,
        description="Between GPUs of one kind, for good: standard deviation over mean of the time "
        "their kernels take (lognormal).",
    )
    step_cv: Share = Field(0.0, description="The same of one GPU from step to step.")
    kernel_cv: Share = Field(
        0.0,
        description="The same of one GPU from each kernel to the next. A step in which every GPU "
        "and every kernel has its own draw then stands beside the expected one "
        "(`step.drawn_seconds`); with `exact` it is the step.",
    )
    slow_nodes: list[SlowNodeSection] = Field(
        default_factory=list, max_length=1000, description="Nodes that throttle."
    )
    links: list[LinkSection] = Field(
        default_factory=list, max_length=1000, description="NICs that are degraded or down."
    )
    timeout: Seconds | None = Field(
        None,
        description="How long a link may be down before the job fails; by default what NCCL's "
        "RDMA transport allows (34 s), without RDMA torch's 10 min.",
    )


class FailuresSection(Section):
    """What stops the job, and how it goes on: from its last checkpoint, on all its nodes."""

    mtbf_per_node: Seconds | None = Field(
        None, description="Mean time between failures of one node, such as 1000h."
    )
    mtbf_per_gpu: Seconds | None = Field(None, description="The same of one GPU, beside that.")
    times: list[Seconds] = Field(
        default_factory=list,
        max_length=100_000,
        description="Instead: when the job fails, since its launch.",
    )
    detect: Seconds = Field(_DETECT, description="Until a failure is noticed.")
    spare_nodes: int = Field(
        0, ge=0, le=100_000, description="Nodes that stand by, beside those of the cluster."
    )
    replacement: Seconds = Field(
        _REPLACEMENT, description="Until a failed node is repaired or replaced."
    )
    takes_node: Share = Field(
        1.0, description="Share of failures that take the node; others restart where they were."
    )
    warm_up: Seconds = Field(0.0, description="After loading, until steps are as fast as before.")

    @model_validator(mode="after")
    def _one_kind(self) -> FailuresSection:
        random = self.mtbf_per_node is not None or self.mtbf_per_gpu is not None
        if random == bool(self.times):
            raise ValueError("give mtbf_per_node, mtbf_per_gpu or both, or else times")
        if 0.0 in (self.mtbf_per_node, self.mtbf_per_gpu):
            raise ValueError("a mean time between failures of 0 leaves no time to work")
        return self


def _every(value: Any) -> Any:
    """A duration, or the word."""
    return value if value == "optimal" else parse_duration(value)


Every = Annotated[
    float | Literal["optimal"],
    BeforeValidator(_every),
    WithJsonSchema({"type": ["string", "number"], "examples": ["30min", "optimal"]}),
]
