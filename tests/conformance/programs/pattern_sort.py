"""Recursive sort: tasks that call themselves."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote
def merge(left, right):
    out = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            out.append(left[i])
            i += 1
        else:
            out.append(right[j])
            j += 1
    return out + left[i:] + right[j:]


def sort(items):
    if len(items) <= 8:
        return ray.put(sorted(items))
    middle = len(items) // 2
    return merge.remote(sort(items[:middle]), sort(items[middle:]))


@ray.remote(num_cpus=0)
def quick(items):
    if len(items) <= 8:
        return sorted(items)
    pivot, rest = items[0], items[1:]
    low = quick.remote([x for x in rest if x < pivot])
    high = quick.remote([x for x in rest if x >= pivot])
    return [*ray.get(low), pivot, *ray.get(high)]


items = [i * 7919 % 101 for i in range(40)]
print(ray.get(sort(items)) == sorted(items))
print(ray.get(quick.remote(items)) == sorted(items))
print(ray.get(sort(list("conformance"))))
