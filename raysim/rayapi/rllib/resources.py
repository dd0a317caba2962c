"""What a trial of an algorithm asks for (``default_resource_request``, ray 2.60)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.raylibs.tune.resources import PlacementGroupFactory

if TYPE_CHECKING:
    from raysim.rayapi.rllib.algorithm_config import AlgorithmConfig


def learner_cpus(config: AlgorithmConfig) -> float:
    """``num_cpus_per_learner``: "auto" is none beside a GPU."""
    said = config.num_cpus_per_learner
    if said != "auto":
        return float(said)
    return 0.0 if config.num_gpus_per_learner else 1.0


def resource_request(config: AlgorithmConfig) -> PlacementGroupFactory:
    """The driver first, then env runners, those of evaluation, learners with aggregators."""
    config.validate()
    evaluation: Any = config.get_evaluation_config_object()
    bundles = [_driver(config), *_runners(config)]
    if config.evaluation_interval:
        bundles += _runners(evaluation)
    aggregators = config.num_aggregator_actors_per_learner
    if not config.num_learners:
        bundles += [{"CPU": 1.0}] * aggregators
    bundles += [
        {
            "CPU": learner_cpus(config) + aggregators, "GPU": config.num_gpus_per_learner,
            **config.custom_resources_per_learner,
        }
    ] * config.num_learners  # fmt: skip
    return PlacementGroupFactory(bundles, strategy=config.placement_strategy)


def _driver(config: AlgorithmConfig) -> dict[str, float]:
    cpus: float = config.num_cpus_for_main_process
    local = not config.num_learners
    return {
        "CPU": max(learner_cpus(config), cpus) if local else cpus,
        "GPU": config.num_gpus_per_learner if local else 0,
        **config.custom_resources_for_main_process,
    }


def _runners(config: AlgorithmConfig) -> list[dict[str, float]]:
    each = {
        "CPU": config.num_cpus_per_env_runner, "GPU": config.num_gpus_per_env_runner,
        **config.custom_resources_per_env_runner,
    }  # fmt: skip
    return [each] * int(config.num_env_runners)
