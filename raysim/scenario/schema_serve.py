"""An application of Ray Serve by numbers, as a scenario says it (``workloads.serve_job``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from raysim.scenario.quantities import Seconds, Share
from raysim.scenario.schema_workload import PerSecond
from raysim.scenario.section import Section

Few = Annotated[int, Field(ge=1, le=1_000_000)]
None_or_few = Annotated[int, Field(ge=0, le=1_000_000)]
Quantity = Annotated[float, Field(ge=0, le=1e9)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
Name = Annotated[str, Field(min_length=1)]
Resources = dict[str, Quantity]


class WorkSection(Section):
    """One request in one replica: what the user's method does."""

    python: Seconds = Field(0.0, description="Python on the replica's event loop.")
    busy: Seconds = Field(
        0.0, description="One request or batch at a time beside the loop, as on a GPU."
    )
    per_item: Seconds = Field(0.0, description="More of `busy` for each request of a batch.")
    wait: Seconds = Field(0.0, description="Overlaps with other requests, as I/O does.")
    cv: Quantity = Field(0.0, description="Standard deviation over mean of these times.")
    calls: list[list[Name]] = Field(
        default_factory=list,
        description="Deployments called through handles: groups in turn, all of a group at once.",
    )
    chunks: None_or_few = Field(0, description="Of a streaming response; 0: one piece.")
    chunk_interval: Seconds = Field(0.0, description="Between chunks.")
    fails: Share = Field(0.0, description="Of requests whose method raises.")


class AutoscalingSection(Section):
    """``autoscaling_config``, by Ray's names."""

    min_replicas: None_or_few = Field(1, description="As in Ray.")
    max_replicas: Few = Field(description="As in Ray.")
    initial_replicas: None_or_few | None = Field(None, description="As in Ray.")
    target_ongoing_requests: Positive = Field(2.0, description="As in Ray.")
    metrics_interval_s: Positive = Field(10.0, description="As in Ray.")
    look_back_period_s: Positive = Field(30.0, description="As in Ray.")
    upscaling_factor: Positive = Field(1.0, description="As in Ray.")
    downscaling_factor: Positive = Field(1.0, description="As in Ray.")
    upscale_delay_s: Quantity = Field(30.0, description="As in Ray.")
    downscale_delay_s: Quantity = Field(600.0, description="As in Ray.")
    downscale_to_zero_delay_s: Quantity | None = Field(None, description="As in Ray.")
    aggregation_function: Literal["mean", "max", "min"] = Field("mean", description="As in Ray.")

    @model_validator(mode="after")
    def _ordered(self) -> AutoscalingSection:
        if self.min_replicas > self.max_replicas:
            raise ValueError("min_replicas is above max_replicas")
        return self


class BatchSection(Section):
    """``@serve.batch``."""

    max_batch_size: Few = Field(10, description="As in Ray.")
    batch_wait_timeout_s: Quantity = Field(0.01, description="As in Ray.")
    max_concurrent_batches: Few = Field(1, description="As in Ray.")


class MultiplexSection(Section):
    """``@serve.multiplexed``."""

    max_num_models_per_replica: Few = Field(3, description="As in Ray.")
    load: Seconds = Field(description="Time to load a model.")


class BundlesSection(Section):
    """A placement group for each replica."""

    bundles: list[Resources] = Field(min_length=1, description="The replica is in the first.")
    strategy: Literal["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"] = Field(
        "PACK", description="As in Ray."
    )


class DeploymentSection(Section):
    """``@serve.deployment``, and what a replica does."""

    name: Name = Field(description="Of the deployment.")
    num_replicas: Few = Field(1, description="As in Ray; without autoscaling_config.")
    autoscaling_config: AutoscalingSection | None = Field(None, description="As in Ray.")
    max_ongoing_requests: Few = Field(5, description="As in Ray.")
    max_queued_requests: Annotated[int, Field(ge=-1)] = Field(-1, description="As in Ray.")
    num_cpus: Quantity = Field(1.0, description="Of a replica's actor.")
    num_gpus: Quantity = Field(0.0, description="Of a replica's actor.")
    resources: Resources = Field(default_factory=dict, description="Custom ones of the actor.")
    placement_group: BundlesSection | None = Field(None, description="Of each replica.")
    graceful_shutdown_timeout_s: Quantity = Field(20.0, description="As in Ray.")
    health_check_period_s: Positive = Field(10.0, description="As in Ray.")
    request_router: Literal["power_of_two", "random"] = Field(
        "power_of_two", description="random: for comparison."
    )
    batch: BatchSection | None = Field(None, description="Requests are served in batches.")
    multiplexed: MultiplexSection | None = Field(None, description="Several models per replica.")
    constructor: Seconds = Field(0.0, description="Of a replica: imports, models to load.")
    work: WorkSection = Field(default_factory=WorkSection, description="One request.")


class StepSection(Section):
    """A rate from a time on."""

    at: Seconds = Field(description="Since the load began.")
    rate: PerSecond = Field(description="Such as 200/s.")


class ServeLoadSection(Section):
    """Who sends requests: users that wait for answers, a rate, or a rate that changes."""

    users: Few | None = Field(None, description="Send, wait for the answer, think, send again.")
    think: Seconds = Field(0.0, description="Of users.")
    rate: PerSecond | None = Field(None, description="Poisson arrivals, such as 200/s.")
    steps: list[StepSection] = Field(
        default_factory=list, description="Rates over time; between two, it changes linearly."
    )
    lasting: Seconds = Field(description="How long.")
    models: None_or_few = Field(
        0, description="Requests ask for one of so many multiplexed models."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> ServeLoadSection:
        given = (self.users is not None) + (self.rate is not None) + bool(self.steps)
        if given != 1:
            raise ValueError("give one of users, rate, steps")
        if any(a.at > b.at for a, b in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError("steps are not in order of time")
        return self


class RedeploySection(Section):
    """A new version of a deployment: a rolling update."""

    deployment: Name = Field(description="Which.")
    at: Seconds = Field(description="Since the load began.")


class ServeSection(Section):
    """An application on Ray Serve, and the load on it."""

    config: Name | None = Field(
        None,
        description="Ray Serve's config file, unmodified, as `serve build` writes it, or the "
        "RayService that holds one; "
        "`deployments` then add what a request does.",
    )
    application: Name | None = Field(None, description="Which of the config file's.")
    ingress: Name | None = Field(None, description="Its ingress; by default the first deployment.")
    deployments: list[DeploymentSection] = Field(
        default_factory=list, description="Of the application."
    )
    load: ServeLoadSection = Field(description="What clients send.")
    options: Literal["default", "grpc", "haproxy", "event_loop", "optimized"] = Field(
        "default",
        description="RAY_SERVE_USE_GRPC_BY_DEFAULT, RAY_SERVE_ENABLE_HA_PROXY, user code in the "
        "replica's loop; optimized: all, as RAY_SERVE_THROUGHPUT_OPTIMIZED.",
    )
    fidelity: Literal["auto", "requests", "flow"] = Field(
        "auto",
        description="requests: each is played; flow: windows of some stand for all, for days of "
        "thousands a second; auto: a flow from 200,000 requests on.",
    )
    redeploys: list[RedeploySection] = Field(
        default_factory=list, description="Rolling updates under load."
    )

    @model_validator(mode="after")
    def _some_deployment(self) -> ServeSection:
        if not self.deployments and self.config is None:
            raise ValueError("give deployments, or a config")
        return self
