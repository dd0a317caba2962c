"""Autoscaling policies of one's own: what they are told, what they remember, what bounds them."""
# cluster: 8 CPU

import time

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy


def by_clock(ctx: AutoscalingContext):
    """One more every second, to four; then two."""
    began = ctx.policy_state.get("began", ctx.current_time)
    passed = ctx.current_time - began
    wanted = 2 if passed > 6 else min(4, 1 + int(passed))
    return wanted, {"began": began}


class Far:
    def __init__(self, most=100):
        self.most = most
        self.asked = 0

    def __call__(self, ctx):
        self.asked += 1
        return float(self.most), {}


@serve.deployment(
    name="Clock",
    autoscaling_config=AutoscalingConfig(
        min_replicas=1,
        max_replicas=10,
        upscale_delay_s=0,
        downscale_delay_s=0,
        policy=AutoscalingPolicy(policy_function=by_clock),
    ),
)
class Deployed:
    def __call__(self):
        return "here"


@serve.deployment(
    autoscaling_config={
        "min_replicas": 1,
        "max_replicas": 3,
        "upscale_delay_s": 0,
        "policy": {"policy_function": Far, "policy_kwargs": {"most": 50}},
    }
)
class Bounded:
    def __call__(self):
        return "bounded"


def running(app, name):
    deployment = serve.status().applications[app].deployments[name]
    return deployment.replica_states.get("RUNNING", 0)


def wait_for(app, name, replicas, seconds=30):
    until = time.time() + seconds
    while running(app, name) != replicas and time.time() < until:
        time.sleep(0.2)
    return running(app, name)


def main():
    ray.init()
    handle = serve.run(Deployed.bind(), name="a", route_prefix="/a")
    print(handle.remote().result())
    print(wait_for("a", "Clock", 4))
    print(wait_for("a", "Clock", 2))
    time.sleep(2)
    print(running("a", "Clock"))
    serve.delete("a")
    handle = serve.run(Bounded.bind(), name="b", route_prefix="/b")
    print(handle.remote().result(), wait_for("b", "Bounded", 3))
    time.sleep(1)
    print(running("b", "Bounded"))
    serve.shutdown()


if __name__ == "__main__":
    main()
