"""An actor ends itself: exit_actor, __ray_terminate__, sys.exit."""
# cluster: 2 CPU

import sys

import ray

ray.init()


@ray.remote(num_cpus=0)
class Leaver:
    def hello(self):
        return "hello"

    def leave(self):
        ray.actor.exit_actor()

    def exit(self):
        sys.exit(0)


@ray.remote(num_cpus=0)
class AsyncLeaver:
    async def hello(self):
        return "hello"

    async def leave(self):
        ray.actor.exit_actor()


def outcome(ref):
    try:
        return ray.get(ref, timeout=30)
    except ray.exceptions.RayError as error:
        return type(error).__name__


for kind in (Leaver, AsyncLeaver):
    leaver = kind.remote()
    print(outcome(leaver.hello.remote()), outcome(leaver.leave.remote()))
    print("afterwards", outcome(leaver.hello.remote()))

leaver = Leaver.remote()
done = [leaver.hello.remote() for _ in range(3)]
print(outcome(leaver.__ray_terminate__.remote()), [outcome(ref) for ref in done])
print(outcome(leaver.hello.remote()))
leaver = Leaver.options(max_restarts=2).remote()
print("leave", outcome(leaver.leave.remote()), outcome(leaver.hello.remote()))
leaver = Leaver.remote()
print("sys.exit", outcome(leaver.exit.remote()), outcome(leaver.hello.remote()))
try:
    ray.actor.exit_actor()
except TypeError as error:
    print("TypeError", error)
