"""Handles of actors in closures, containers, other actors and objects; and when they are gone."""
# cluster: 2 CPU

import time
from dataclasses import dataclass

import ray

ray.init()


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self, start=0):
        self.n = start

    def up(self, by=1):
        self.n += by
        return self.n


@ray.remote(num_cpus=0)
class Witness:
    def __init__(self):
        self.known = []

    def ask(self, handles):
        return [ray.get(handle.up.remote()) for handle in handles]

    def keep(self, handles):
        self.known += handles

    def ask_known(self):
        return self.ask(self.known)

    def myself(self):
        return ray.get_runtime_context().current_actor

    def hand_on(self):
        return list(self.known)


@dataclass
class Box:
    name: str
    counter: object


counter = Counter.remote()


@ray.remote(num_cpus=0)
def by_global():
    return ray.get(counter.up.remote())


def make(by):
    mine = Counter.remote(100)

    @ray.remote(num_cpus=0)
    def by_closure():
        return ray.get(mine.up.remote(by))

    return by_closure


print("global", ray.get(by_global.remote()), ray.get(by_global.remote()))
closure = make(5)
print("closure", ray.get(closure.remote()), ray.get(closure.remote()))


@ray.remote(num_cpus=0)
def unbox(box, in_dict, ref):
    return [ray.get(h.up.remote()) for h in (box.counter, in_dict["k"][0], ray.get(ref[0]))]


print("boxed", ray.get(unbox.remote(Box("b", counter), {"k": [counter]}, [ray.put(counter)])))
print("equal", counter == ray.get(ray.put(counter)), len({counter, ray.get(ray.put(counter))}))
witness = Witness.remote()
print("ask", ray.get(witness.ask.remote([counter, counter])))
ray.get(witness.keep.remote([Counter.remote(50)]))
time.sleep(1)
print("kept by another", ray.get(witness.ask_known.remote()))
(handed,) = ray.get(witness.hand_on.remote())
print("handed back", ray.get(handed.up.remote()))
ray.kill(witness)
time.sleep(1)
print("without the keeper", ray.get(handed.up.remote()))


@ray.remote(num_cpus=0)
def creates():
    inner = Counter.remote(7)
    ray.get(inner.up.remote())
    return inner


def outcome(ref):
    try:
        return ray.get(ref, timeout=10)
    except Exception as error:
        return type(error).__name__


born = ray.get(creates.remote())
print("made in a task", outcome(born.up.remote()))
witness = Witness.remote()
same = ray.get(witness.myself.remote())
print("itself", same == witness, same._actor_id == witness._actor_id)
print(
    outcome(Counter.remote(1).up.remote()),
    outcome(Counter.options(num_cpus=1).remote().up.remote()),
)
named = Counter.options(name="named").remote(20)
by_name = ray.get_actor("named")
print("by name", outcome(by_name.up.remote()), outcome(named.up.remote()))
del named
time.sleep(1.5)
print("after the last handle", outcome(by_name.up.remote()))
try:
    ray.get_actor("named")
    print("found")
except ValueError:
    print("not found")
