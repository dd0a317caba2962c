"""Tune's parts by hand: draws of domains, a Trainable that is stepped, names of schedulers, a folder."""
# cluster: 4 CPU

import os
import tempfile
from pathlib import Path

import numpy as np

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining


def tried(call):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__, str(error)[:70])


def draws():
    for domain in (
        tune.uniform(0, 1), tune.loguniform(1e-4, 1), tune.randint(0, 100), tune.randn(1, 2),
        tune.choice(["a", "b", "c"]), tune.quniform(0, 1, 0.25), tune.qrandint(0, 100, 10),
        tune.lograndint(1, 1000),
    ):  # fmt: skip
        one, some = domain.sample(random_state=7), domain.sample(size=3, random_state=7)
        print(one, type(some).__name__, [float(v) if v not in "abc" else v for v in some]
              if isinstance(some[0], str) else np.round(some, 6).tolist())  # fmt: skip
    print(tune.uniform(0, 1).sample(random_state=np.random.RandomState(1)))
    print(tune.uniform(0, 1).domain_str, tune.choice([1, 2]).domain_str, len(tune.choice([4, 5])))


class Counting(tune.Trainable):
    def setup(self, config):
        self.x, self.n = config["x"], 0

    def step(self):
        self.n += 1
        return {"v": self.x * self.n}

    def save_checkpoint(self, folder):
        Path(folder, "n").write_text(str(self.n))

    def load_checkpoint(self, folder):
        self.n = int(Path(folder, "n").read_text())


def stepped():
    counting = Counting({"x": 2})
    print(counting.train()["v"], counting.training_iteration)
    with tempfile.TemporaryDirectory() as folder:
        saved = counting.save(folder)
        print(counting.train()["v"], counting.iteration)
        counting.restore(saved)
        print(counting.n, counting.iteration)
    counting.stop()
    tried(lambda: tune.Trainable().train())


def objective(config):
    for step in range(3):
        tune.report({"s": config["x"] * step})


def named(scheduler=None, search_alg=None):
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            objective, param_space={"x": tune.grid_search([1, 3, 2])},
            tune_config=tune.TuneConfig(metric="s", mode="max", scheduler=scheduler,
                                        search_alg=search_alg),
            run_config=tune.RunConfig(name="n", storage_path=folder, verbose=0),
        )  # fmt: skip
        tuner.fit()
        there = tune.ExperimentAnalysis(f"{folder}/n", default_metric="s", default_mode="max")
        print(there.best_config, there.get_best_config("s", "min"), len(there.trials))
        return there.best_result["s"]


def main():
    ray.init()
    draws()
    stepped()
    tried(lambda: named("fifo", "random"))
    tried(lambda: named("asha"))
    tried(lambda: named(None, "zz"))
    tried(lambda: tune.Tuner(objective, param_space=5))
    tried(lambda: PopulationBasedTraining(metric="s", mode="max"))
    tried(lambda: PopulationBasedTraining(metric="s", mode="avg", hyperparam_mutations={"x": [1]}))


if __name__ == "__main__":
    main()
