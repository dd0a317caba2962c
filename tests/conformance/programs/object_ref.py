"""What a reference is."""
# cluster: 2 CPU

import asyncio
import pickle

import ray

ray.init()


@ray.remote
def double(x):
    return 2 * x


@ray.remote
def fail():
    raise OSError("no disk")


ref = double.remote(4)
print(type(ref).__name__, len(ref.hex()), len(ref.binary()), str(ref)[:10], ref.is_nil())
print(ref == ray.ObjectRef(ref.binary()), hash(ref) == hash(ray.ObjectRef(ref.binary())))
print(len({ref, ref, double.remote(1)}), isinstance(ref, ray.ObjectRef))
print(ref.task_id().hex() == ref.hex()[:48], ref.job_id() == ray.get_runtime_context().job_id)
print(ref.future().result(), ref.future().result(timeout=5))
try:
    fail.remote().future().result()
except OSError as error:
    print(type(error).__name__)


async def main():
    try:
        await fail.remote()
    except OSError:
        print("awaited")
    return await ref, await asyncio.wrap_future(ref.future())


print(asyncio.run(main()))
a, b = double.options(num_returns=2).remote(1), double.remote(2)
print(a[0].hex()[:48] == a[1].hex()[:48], a[0].hex()[-8:], a[1].hex()[-8:], b.hex()[-8:])
print(ray.put(1).hex()[-8:], ray.put(2).hex()[-8:])
try:
    pickle.dumps(ref)
    print("pickled")
except Exception as error:
    print(type(error).__name__, str(error)[:60])
