"""Batches, multiplexed models, user_config, options of a replica, updates."""
# cluster: 8 CPU

import time

import ray
from ray import serve

ray.init()


@serve.deployment(max_ongoing_requests=20)
class Batched:
    @serve.batch(max_batch_size=4, batch_wait_timeout_s=0.5)
    async def together(self, xs):
        return [(x * 10, len(xs)) for x in xs]

    async def __call__(self, x):
        return await self.together(x)

    @serve.batch(max_batch_size=2, batch_wait_timeout_s=0.5)
    async def pairs(self, xs, ys):
        return [x + y for x, y in zip(xs, ys, strict=True)]

    async def pair(self, x, y):
        return await self.pairs(x, y)


handle = serve.run(Batched.bind())
print([r.result() for r in [handle.remote(i) for i in range(8)]])
print([r.result() for r in [handle.remote(i) for i in range(3)]])
print([r.result() for r in [handle.pair.remote(i, 100) for i in range(2)]])


@serve.deployment(max_ongoing_requests=20)
class Models:
    def __init__(self):
        self.loaded = []

    @serve.multiplexed(max_num_models_per_replica=2)
    async def model(self, model_id: str):
        self.loaded.append(model_id)
        return f"model {model_id}"

    async def __call__(self, x):
        model = await self.model(serve.get_multiplexed_model_id())
        return model, x

    def history(self):
        return self.loaded


models = serve.run(Models.bind(), name="models", route_prefix="/models")
for name in ("a", "b", "a", "c", "b"):
    print(models.options(multiplexed_model_id=name).remote(1).result())
print(models.history.remote().result())


@serve.deployment(user_config={"threshold": 1}, ray_actor_options={"num_cpus": 0.5})
class Configured:
    def __init__(self):
        self.seen = []

    def reconfigure(self, config):
        self.seen.append(config["threshold"])

    def __call__(self):
        context = serve.get_replica_context()
        return self.seen, context.app_name, context.deployment


configured = serve.run(Configured.bind(), name="configured", route_prefix="/configured")
print(configured.remote().result())
print(Configured.num_replicas, Configured.options(num_replicas=3).num_replicas, Configured.name)
print(Configured.options(name="other").name, Configured.max_ongoing_requests)


@serve.deployment(num_replicas=2)
class Versioned:
    def __init__(self, version):
        self.version = version

    def __call__(self):
        return self.version


versioned = serve.run(Versioned.bind(1), name="versioned", route_prefix="/versioned")
print({versioned.remote().result() for _ in range(6)})
versioned = serve.run(Versioned.bind(2), name="versioned", route_prefix="/versioned")
time.sleep(1)
print({versioned.remote().result() for _ in range(6)})
print(sorted(serve.status().applications))
serve.shutdown()
