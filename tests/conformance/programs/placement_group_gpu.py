"""GPUs and custom resources in bundles."""
# cluster: head 2 CPU; 1 x 4 CPU, 4 GPU, 1000 MiB memory, {"disk": 3}

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ray.init()
group = placement_group([{"CPU": 1, "GPU": 2}, {"CPU": 1, "GPU": 1, "disk": 0.5}])
ray.get(group.ready())


def inside(index):
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


@ray.remote(num_gpus=1, max_calls=0)
def gpus():
    return ray.get_gpu_ids()


@ray.remote(num_cpus=0, num_gpus=1)
class Actor:
    def gpus(self):
        return ray.get_gpu_ids()


actors = [Actor.options(scheduling_strategy=inside(0)).remote() for _ in range(2)]
first = ray.get([actor.gpus.remote() for actor in actors])
print(len({i for ids in first for i in ids}))
(other,) = ray.get(gpus.options(scheduling_strategy=inside(1)).remote())
print(other not in {i for ids in first for i in ids})
(outside,) = ray.get(gpus.remote())
print(len({i for ids in first for i in ids} | {other, outside}))
waiting = gpus.options(scheduling_strategy=inside(0)).remote()
print(len(ray.wait([waiting], timeout=1)[0]))
ray.kill(actors[0])
print(ray.get(waiting, timeout=30) == first[0])
