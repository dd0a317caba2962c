"""Tasks of any bundle: one that no bundle has room for takes its resources from several."""
# cluster: 3 CPU, 1 GPU

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(num_cpus=1)
class Worker:
    def name(self):
        return "worker"


@ray.remote(num_cpus=1, num_gpus=1)
class Trainer:
    def name(self):
        return "trainer"


def main():
    ray.init()
    group = placement_group([{"CPU": 1, "GPU": 1}, {"CPU": 1}, {"CPU": 1}], strategy="PACK")
    ray.get(group.ready())
    anywhere = PlacementGroupSchedulingStrategy(placement_group=group)
    workers = [Worker.options(scheduling_strategy=anywhere).remote() for _ in range(2)]
    print(ray.get([worker.name.remote() for worker in workers]))
    trainer = Trainer.options(scheduling_strategy=anywhere).remote()
    print(ray.get(trainer.name.remote(), timeout=30))
    late = Worker.options(scheduling_strategy=anywhere).remote()
    try:
        ray.get(late.name.remote(), timeout=3)
    except ray.exceptions.GetTimeoutError as error:
        print(type(error).__name__)
    held = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    for worker in workers:
        ray.kill(worker)
    print(ray.get(late.name.remote(), timeout=30))
    ray.kill(late)
    ray.kill(trainer)
    trainer = Trainer.options(scheduling_strategy=held).remote()
    print(ray.get(trainer.name.remote(), timeout=30))


if __name__ == "__main__":
    main()
