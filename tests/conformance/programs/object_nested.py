"""References inside values are passed on, not resolved."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote
def make(n):
    return [ray.put(i * i) for i in range(n)]


@ray.remote
def read(box):
    return {key: ray.get(ref) for key, ref in box.items()}


@ray.remote
def later(x):
    return x + 1


@ray.remote
def wrap(box):
    return {"again": box}


refs = ray.get(make.remote(4))
print([type(ref).__name__ for ref in refs[:1]], ray.get(refs))
print(ray.get(read.remote({"a": ray.put(1), "b": later.remote(1)})))
inner = later.remote(41)
boxed = ray.put([inner])
del inner
print(ray.get(ray.get(boxed)[0]))
twice = ray.get(wrap.remote([later.remote(1)]))
print(ray.get(twice["again"][0]))
deep = ray.put(ray.get(ray.put([ray.put("deep")])))
print(ray.get(ray.get(deep)[0]))
tree = ray.put([ray.put([ray.put(1), ray.put(2)]), ray.put([ray.put(3)])])
print([[ray.get(leaf) for leaf in ray.get(branch)] for branch in ray.get(tree)])
