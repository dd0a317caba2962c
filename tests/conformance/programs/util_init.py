"""init and shutdown."""
# cluster: 2 CPU

import ray

print(ray.is_initialized())


@ray.remote
def early(x):
    return x + 1


print(ray.get(early.remote(1)), ray.is_initialized())
try:
    ray.init()
except RuntimeError as error:
    print("RuntimeError", str(error).split("?")[0])
print(type(ray.init(ignore_reinit_error=True)).__name__)
ray.shutdown()
ray.shutdown()
print(ray.is_initialized())
context = ray.init(namespace="again")
print(type(context).__name__, sorted(context.address_info)[:3])
print(ray.get(early.remote(2)), ray.get_runtime_context().namespace)
with ray.init(ignore_reinit_error=True):
    print(ray.is_initialized())
print(ray.is_initialized())
try:
    ray.init(num_cpus=2)
except ValueError as error:
    print("ValueError", str(error).splitlines()[0][:70])
