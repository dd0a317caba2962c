"""An actor that goes on where it was, from a checkpoint kept by another actor."""
# cluster: 2 CPU

import os
import time

import ray

ray.init()


@ray.remote(num_cpus=0)
class Vault:
    def __init__(self):
        self.saved = 0

    def save(self, value):
        self.saved = value

    def load(self):
        return self.saved


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Trainer:
    def __init__(self, vault):
        self.vault = vault
        self.step = ray.get(vault.load.remote())
        self.began = self.step

    def train(self, until):
        while self.step < until:
            self.step += 1
            if self.step % 5 == 0:
                ray.get(self.vault.save.remote(self.step))
            if self.step == 12 and self.began == 0:
                os._exit(1)
        return self.began, self.step


vault = Vault.remote()
trainer = Trainer.remote(vault)
print(ray.get(trainer.train.remote(20)))
print(ray.get(trainer.train.remote(20)), ray.get(vault.load.remote()))
ray.kill(trainer, no_restart=False)
time.sleep(0.2)
print(ray.get(trainer.train.remote(21)))
