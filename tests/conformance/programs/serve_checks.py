"""What options, routes and names of Serve are refused; a new user_config; a replica that is ill."""
# cluster: 8 CPU

import time

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig


def say(label, call):
    try:
        print(label, call())
    except Exception as error:
        print(label, type(error).__name__, str(error).splitlines()[:1])


@serve.deployment(user_config={"t": 1}, max_ongoing_requests=3, health_check_period_s=0.3)
class Told:
    def __init__(self):
        self.calls, self.well = 0, True

    def reconfigure(self, config):
        self.t = config["t"]
        self.calls += 1

    def check_health(self):
        if not self.well:
            raise RuntimeError("ill")

    def fall_ill(self):
        self.well = False
        return "ill"

    def __call__(self, x=0):
        return self.t, self.calls, x, self.well

    def here(self):
        context = serve.get_replica_context()
        named = context.replica_id.deployment_id
        return context.app_name, context.deployment, context.world_size, str(named)


ray.init()
for wrong in (
    {"num_replicas": 0}, {"num_replicas": -1}, {"num_replicas": "two"}, {"foo": 1},
    {"max_ongoing_requests": 0}, {"max_queued_requests": -5},
    {"health_check_period_s": 0}, {"graceful_shutdown_timeout_s": -1},
):  # fmt: skip
    say(wrong, lambda wrong=wrong: Told.options(**wrong))
for wrong in (
    {"min_replicas": -1}, {"max_replicas": 0}, {"min_replicas": 3, "max_replicas": 2},
    {"initial_replicas": 9, "max_replicas": 3}, {"target_ongoing_requests": 0},
    {"upscaling_factor": 0}, {"aggregation_function": "sum"}, {"unknown": 1},
):  # fmt: skip
    say(wrong, lambda wrong=wrong: AutoscalingConfig(**wrong).max_replicas)
say("of one", lambda: serve.run(Told))
for prefix in ("told", "/told/", "/{x}"):
    say(prefix, lambda prefix=prefix: serve.run(Told.bind(), route_prefix=prefix))
say("no name", lambda: serve.run(Told.bind(), name=""))
handle = serve.run(Told.bind(), name="one", route_prefix="/one")
say("call", lambda: handle.remote(5).result())
say("here", lambda: handle.here.remote().result())
say("options", lambda: handle.options(foo=1))
say("method", lambda: handle.options(method_name="here").remote().result()[0])
say("app", lambda: serve.get_app_handle("one").remote(1).result())
say("no app", lambda: serve.get_app_handle("two"))
say("no deployment", lambda: serve.get_deployment_handle("Nope", app_name="one"))
say("of which app", lambda: serve.get_deployment_handle("Told"))
handle = serve.run(Told.options(user_config={"t": 2}).bind(), name="one", route_prefix="/one")
say("told again", lambda: handle.remote(5).result())
say("ill", lambda: handle.fall_ill.remote().result())
for _ in range(200):
    try:
        if handle.remote().result()[3]:
            break
    except Exception:
        pass
    time.sleep(0.1)
say("another replica", lambda: handle.remote(6).result())
serve.delete("one")
say("deleted", lambda: handle.remote().result(timeout_s=5))
serve.shutdown()
