"""A scheduler of one's own, actors that are used again, results that lack the metric, refusals."""
# cluster: 4 CPU

import os
import tempfile

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler


class Steps(tune.Trainable):
    def setup(self, config):
        self.reset_config(config)

    def reset_config(self, config):
        self.x, self.n = config["x"], 0
        return True

    def step(self):
        self.n += 1
        return {"s": self.x * self.n}


class Until(TrialScheduler):
    """Ends a trial whose value is large enough."""

    def on_trial_add(self, controller, trial):
        pass

    on_trial_error = on_trial_remove = on_trial_add

    def on_trial_result(self, controller, trial, result):
        return TrialScheduler.STOP if result["s"] >= 6 else TrialScheduler.CONTINUE

    def on_trial_complete(self, controller, trial, result):
        pass

    def choose_trial_to_run(self, controller):
        return next((t for t in controller.get_trials() if t.status == "PENDING"), None)

    def debug_string(self):
        return "until"


def say(label, call):
    try:
        print(label, call())
    except Exception as error:
        print(label, type(error).__name__, "metric" in str(error), str(error).splitlines()[0][:60])


def fit(scheduler=None, xs=(4, 3, 2, 1), at_once=1, metric="s", samples=1, failure=None, **more):
    tuner = tune.Tuner(
        Steps,
        param_space={"x": tune.grid_search(list(xs))},
        tune_config=tune.TuneConfig(
            metric=metric, mode="max", scheduler=scheduler, num_samples=samples,
            max_concurrent_trials=at_once, **more,
        ),
        run_config=tune.RunConfig(
            storage_path=folder, verbose=0, stop={"training_iteration": 9}, failure_config=failure
        ),
    )  # fmt: skip
    return sorted((r.config["x"], r.metrics["training_iteration"]) for r in tuner.fit())


def silent(config):
    tune.report(5)


ray.init()
with tempfile.TemporaryDirectory() as folder:
    say("own", lambda: fit(Until()))
    say("again, one by one", lambda: fit(FIFOScheduler(), reuse_actors=True))
    say("again, two", lambda: fit(at_once=2, reuse_actors=True))
    say("halving", lambda: fit(ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)))
    say("none", lambda: fit(samples=0))
    say("told twice", lambda: fit(ASHAScheduler(metric="s", mode="max")))
    say("by name", lambda: fit(tune.create_scheduler("async_hyperband", max_t=4, foo=1)))
    say("no such name", lambda: tune.create_scheduler("asha"))
    settings = tune.RunConfig(storage_path=folder, verbose=0)
    run = tune.Tuner(silent, run_config=settings).fit()
    print("no dictionary", type(run.errors[0]).__name__, run.num_errors)
    raises = tune.FailureConfig(fail_fast="raise")
    failing = tune.Tuner(silent, run_config=tune.RunConfig(storage_path=folder, verbose=0,
                                                           failure_config=raises))  # fmt: skip
    try:
        failing.fit()
    except TypeError as error:
        print("raises", type(error).__name__)
for wrong in ({"fail_fast": "x"}, {"fail_fast": True, "max_failures": 2}):
    say(wrong, lambda wrong=wrong: tune.FailureConfig(**wrong))
for wrong in ({"num_to_keep": 0}, {"checkpoint_score_order": "x"}, {"checkpoint_frequency": -1}):
    say(wrong, lambda wrong=wrong: tune.CheckpointConfig(**wrong))
say("no trainable", lambda: tune.Tuner(5).fit())
say("unknown", lambda: tune.Tuner("nope").fit())
say("outside", lambda: (tune.report({"a": 1}), tune.get_context().get_trial_name()))
say("bundles", lambda: tune.PlacementGroupFactory([{}, {"CPU": 2}]).head_bundle_is_empty)
