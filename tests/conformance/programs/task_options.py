"""Options of a task, and what Ray says about those that make no sense."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote(num_cpus=1)
def resources():
    return ray.get_runtime_context().get_assigned_resources()


print(ray.get(resources.remote()))
print(ray.get(resources.options(num_cpus=2).remote()))
print(ray.get(resources.options(num_cpus=0).remote()))
print(ray.get(resources.options(num_cpus=0.5, name="half").remote()))
print(ray.get(resources.remote()))
print(ray.get(ray.remote(lambda x: x + 1).remote(1)))
print(ray.get(ray.remote(num_returns=1)(lambda: "decorated").remote()))

for options in (
    {"num_cpus": -1},
    {"num_cpus": "two"},
    {"num_returns": -1},
    {"max_retries": -2},
    {"no_such_option": 1},
    {"resources": {"CPU": 1}},
    {"resources": {"x": -1}},
    {"num_gpus": 1.5},
    {"max_restarts": 1},
    {"memory": 0.5},
    {"scheduling_strategy": "NOWHERE"},
    {"runtime_env": 3},
):
    try:
        resources.options(**options).remote()
        print(options, "accepted")
    except Exception as error:
        print(options, type(error).__name__, str(error).splitlines()[0].split(". ")[0])
