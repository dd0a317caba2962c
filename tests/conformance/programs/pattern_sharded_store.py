"""A key-value store sharded over actors on several nodes."""
# cluster: head 1 CPU; 2 x 1 CPU

import zlib

import ray

ray.init()
names = {n["NodeID"]: n["NodeName"] for n in ray.nodes()}


@ray.remote(num_cpus=0)
class Shard:
    def __init__(self):
        self.data = {}

    def put(self, key, value):
        self.data[key] = value

    def get(self, key):
        return self.data.get(key)

    def info(self):
        return names[ray.get_runtime_context().get_node_id()], len(self.data)


class Store:
    def __init__(self, shards):
        self.shards = shards

    def shard(self, key):
        return self.shards[zlib.crc32(key.encode()) % len(self.shards)]

    def put(self, key, value):
        return self.shard(key).put.remote(key, value)

    def get(self, key):
        return self.shard(key).get.remote(key)


@ray.remote
def write(store, start):
    ray.get([store.put(f"key{i}", i) for i in range(start, start + 10)])


store = Store([Shard.options(resources={f"n{i}": 0.1}).remote() for i in range(3)])
ray.get([write.remote(store, start) for start in (0, 10, 20)])
print(ray.get([store.get(f"key{i}") for i in (0, 7, 29, 30)]))
print(ray.get([shard.info.remote() for shard in store.shards]))
