"""A sweep of Ray Tune by numbers, as a scenario says it (``workloads.tune_job``)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from raysim.scenario.quantities import Bytes, BytesPerSecond, Seconds, Share
from raysim.scenario.section import Section

Few = Annotated[int, Field(ge=1, le=1_000_000)]
Quantity = Annotated[float, Field(ge=0, le=1e9)]
Resources = dict[str, Quantity]


class CurveSection(Section):
    """The loss that trials report: floor + (start - floor) exp(-iteration / decay), with noise."""

    start: Quantity = Field(2.5, description="Before the first iteration.")
    floor: tuple[Quantity, Quantity] = Field(
        (0.2, 1.2), description="Where trials end up: anything between the two."
    )
    decay: Annotated[float, Field(gt=0, le=1e9)] = Field(
        10.0, description="Iterations to come 63 % of the way."
    )
    noise: Quantity = Field(0.02, description="Standard deviation of what is reported.")


class TrialSection(Section):
    """What each trial does and asks for."""

    iterations: Few = Field(100, description="It ends by itself after so many results.")
    iteration: Seconds = Field(description="Time of one, such as 30s.")
    iteration_cv: Share = Field(0.0, description="How much trials and iterations differ.")
    on_cores: Quantity = Field(0.0, description="Cores kept busy; 0: it waits, as for GPUs.")
    setup: Seconds = Field(0.0, description="Before the first iteration, beside Ray's imports.")
    resources: Resources = Field(
        default_factory=lambda: {"CPU": 1.0}, description="Of the trial, or of each worker."
    )
    workers: Annotated[int, Field(ge=0, le=100_000)] = Field(
        0, description="Workers of a trial, each with `resources`; the trial itself holds a CPU."
    )
    checkpoint: Bytes | None = Field(None, description="Size of one, such as 500MB.")
    checkpoint_every: Few = Field(1, description="Iterations between checkpoints.")
    storage: BytesPerSecond | None = Field(
        None, description="Of one trial's checkpoints, each way; 500 MB/s by default."
    )
    curve: CurveSection = Field(default_factory=CurveSection, description="What it reports.")


class TenantSection(Section):
    """Somebody else's job on the same cluster: it holds bundles for a while."""

    name: str = Field("tenant", min_length=1, description="Its name.")
    bundles: Few = Field(description="How many workers.")
    resources: Resources = Field(description="Of each.")
    begins: Seconds = Field(0.0, description="When it asks.")
    lasts: Seconds = Field(description="How long it holds them once they are placed.")


class TuneSection(Section):
    """A sweep: trials, a scheduler, and who else is there."""

    trials: Few = Field(description="How many samples.")
    trial: TrialSection = Field(description="One trial.")
    scheduler: Literal["fifo", "asha", "hyperband", "median_stopping", "pbt"] = Field(
        "fifo", description="Which of Tune's schedulers."
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Of the scheduler, by Ray's names: max_t, grace_period."
    )
    searcher: bool = Field(
        False, description="Suggestions come one by one, as of Optuna; else random search."
    )
    max_concurrent_trials: Few | None = Field(None, description="Trials at once.")
    reuse_actors: bool = Field(False, description="Trials go on in the actors of earlier ones.")
    loggers: bool = Field(True, description="Results go to JSON, CSV and TensorBoard files.")
    max_failures: Annotated[int, Field(ge=-1, le=1_000_000)] = Field(
        0, description="Retries of a trial; -1: always."
    )
    num_to_keep: Few | None = Field(None, description="Checkpoints kept of a trial.")
    time_budget: Seconds | None = Field(None, description="All trials stop then.")
    tenants: list[TenantSection] = Field(
        default_factory=list, description="Other jobs on the cluster."
    )
