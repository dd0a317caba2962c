"""The GCS's table as programs see it: ``ray.experimental.internal_kv``."""
# cluster: 4 CPU

import ray
from ray.experimental import internal_kv as kv


@ray.remote
def told(key):
    kv._internal_kv_put("answer", b"from a task", namespace="kv")
    return kv._internal_kv_get(key, namespace="kv")


ray.init()
print(kv._internal_kv_initialized())
print(kv._internal_kv_put("a1", "one", namespace="kv"))
print(kv._internal_kv_put(b"a1", b"two", overwrite=False, namespace="kv"))
print(kv._internal_kv_get("a1", namespace="kv"), kv._internal_kv_get("a1", namespace="other"))
print(kv._internal_kv_put("a2", b"\xff\x00", namespace="kv"))
print(sorted(kv._internal_kv_list("a", namespace="kv")))
print(kv._internal_kv_exists("a2", namespace="kv"), kv._internal_kv_exists("b", namespace="kv"))
print(ray.get(told.remote("a2")), kv._internal_kv_get("answer", namespace="kv"))
print(kv._internal_kv_del("a", del_by_prefix=True, namespace="kv"))
print(kv._internal_kv_list("", namespace="kv"), kv._internal_kv_del("a1", namespace="kv"))
try:
    kv._internal_kv_put(5, b"x")
except AssertionError as error:
    print(type(error).__name__)
