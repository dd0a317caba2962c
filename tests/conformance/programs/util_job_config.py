"""What a driver says of its job: namespace, environment, how long its actors live."""
# cluster: 2 CPU

import os
import warnings

import ray
from ray.job_config import JobConfig
from ray.util.annotations import Deprecated, DeveloperAPI, PublicAPI


@ray.remote(num_cpus=0)
class Counter:
    def value(self):
        return os.environ.get("MINE")


@ray.remote
def variable():
    return os.environ.get("MINE")


@PublicAPI(stability="alpha")
class Mine:
    pass


@DeveloperAPI
def plain():
    return 1


@Deprecated(message="Use another.", warning=True)
def old():
    return 2


def main():
    config = JobConfig(ray_namespace="here", runtime_env={"env_vars": {"MINE": "1"}})
    config.set_metadata("submitter", "me")
    config.set_default_actor_lifetime("detached")
    ray.init(job_config=config)
    print(ray.get_runtime_context().namespace, ray.get(variable.remote()))
    Counter.options(name="stays").remote()
    print(ray.get(ray.get_actor("stays").value.remote()))
    ray.shutdown()

    ray.init(namespace="there", job_config=JobConfig(ray_namespace="here"))
    print(ray.get_runtime_context().namespace, ray.get(variable.remote()))
    kept = ray.get_actor("stays", namespace="here")
    print(ray.get(kept.value.remote()))
    ray.kill(kept)

    print(ray.job_config.JobConfig is JobConfig)
    print(JobConfig.from_json({"metadata": {"a": "b"}, "ray_namespace": "n"}).metadata)
    for wrong in ({"default_actor_lifetime": "long"}, {"code_search_path": "a:b"}):
        try:
            JobConfig(**wrong)
        except (TypeError, ValueError) as error:
            print(type(error).__name__, error)
    print(Mine.__name__, plain())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        print(old(), [warning.category.__name__ for warning in said])


if __name__ == "__main__":
    main()
