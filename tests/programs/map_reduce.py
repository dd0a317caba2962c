"""A shuffle: every map returns a part for every reduce."""

import zlib

import ray

TEXT = """the quick brown fox jumps over the lazy dog
the dog barks and the fox runs
a quick dog and a lazy fox meet
over the hill the fox jumps again""".splitlines()
REDUCERS = 3


@ray.remote(num_returns=REDUCERS)
def map_lines(lines):
    parts = [{} for _ in range(REDUCERS)]
    for line in lines:
        for word in line.split():
            part = parts[zlib.crc32(word.encode()) % REDUCERS]
            part[word] = part.get(word, 0) + 1
    return parts


@ray.remote
def reduce_words(*parts):
    total = {}
    for part in parts:
        for word, count in part.items():
            total[word] = total.get(word, 0) + count
    return total


if __name__ == "__main__":
    ray.init(num_cpus=4)
    mapped = [map_lines.remote(TEXT[i : i + 2]) for i in range(0, len(TEXT), 2)]
    reduced = [reduce_words.remote(*[m[r] for m in mapped]) for r in range(REDUCERS)]
    counts = {}
    for part in ray.get(reduced):
        counts.update(part)
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:6]:
        print(word, count)
    print(sum(counts.values()))
    ray.shutdown()
