"""An actor that counts, shared by handle, with calls in order from each caller."""

import ray


@ray.remote
class Counter:
    def __init__(self, start=0):
        self.value = start
        self.seen = []

    def increment(self, by=1):
        self.value += by
        return self.value

    def note(self, caller, number):
        self.seen.append((caller, number))

    def orders(self):
        callers = sorted({caller for caller, _ in self.seen})
        return [[n for c, n in self.seen if c == caller] for caller in callers]


@ray.remote
def bump(counter, caller):
    for number in range(5):
        counter.note.remote(caller, number)
    return ray.get(counter.increment.remote(by=10))


if __name__ == "__main__":
    ray.init(num_cpus=4)
    counter = Counter.remote(100)
    print(ray.get([counter.increment.remote() for _ in range(5)]))
    print(sorted(ray.get([bump.remote(counter, name) for name in "abc"])))
    print(ray.get(counter.orders.remote()))
    named = Counter.options(name="shared").remote()
    ray.get(named.increment.remote())
    print(ray.get(ray.get_actor("shared").increment.remote(5)))
    ray.kill(named)
    try:
        while True:  # the kill is a message: calls that overtake it still count
            ray.get(named.increment.remote())
    except ray.exceptions.RayActorError as error:
        print(type(error).__name__)
    ray.shutdown()
