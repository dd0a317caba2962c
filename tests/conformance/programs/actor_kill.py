"""ray.kill, and what calls say afterwards."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote(num_cpus=0)
class Worker:
    def sleep(self, seconds):
        time.sleep(seconds)
        return "slept"

    def hello(self):
        return "hello"


def outcome(ref):
    try:
        return ray.get(ref, timeout=30)
    except ray.exceptions.RayError as error:
        return type(error).__name__, isinstance(error, ray.exceptions.RayActorError)


worker = Worker.remote()
print(outcome(worker.hello.remote()))
running, queued = worker.sleep.remote(60), worker.hello.remote()
time.sleep(0.5)
print(ray.kill(worker))
print("running", outcome(running))
print("queued", outcome(queued))
print("later", outcome(worker.hello.remote()))
ray.kill(worker)

lasting = Worker.options(max_restarts=1).remote()
print(outcome(lasting.hello.remote()))
ray.kill(lasting, no_restart=False)
for _ in range(100):
    if outcome(lasting.hello.remote()) == "hello":
        print("restarted")
        break
    time.sleep(0.1)
ray.kill(lasting)
print("killed for good", outcome(lasting.hello.remote()))
try:
    ray.kill("worker")
except ValueError as error:
    print("ValueError", str(error).split(". ")[0])
try:
    ray.get(Worker.options(max_restarts=-2).remote().hello.remote())
except ValueError as error:
    print("ValueError", error)
