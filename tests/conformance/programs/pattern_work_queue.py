"""A crawl: tasks find more tasks, an actor knows what was seen."""
# cluster: 2 CPU

import ray

ray.init()
LINKS = {i: [(3 * i + 1) % 23, (2 * i) % 23, i // 2] for i in range(23)}


@ray.remote(num_cpus=0)
class Frontier:
    def __init__(self, start):
        self.todo, self.seen, self.out = [start], {start}, 0

    def take(self):
        if self.todo:
            self.out += 1
            return self.todo.pop()
        return None if self.out else "end"

    def found(self, links):
        self.out -= 1
        new = [link for link in links if link not in self.seen]
        self.seen.update(new)
        self.todo.extend(dict.fromkeys(new))

    def result(self):
        return sorted(self.seen)


@ray.remote
def crawl(frontier):
    pages = 0
    while (page := ray.get(frontier.take.remote())) != "end":
        if page is not None:
            pages += 1
            ray.get(frontier.found.remote(LINKS[page]))
    return pages


frontier = Frontier.remote(1)
pages = ray.get([crawl.remote(frontier) for _ in range(2)])
seen = ray.get(frontier.result.remote())
print(sum(pages) == len(seen), seen)
