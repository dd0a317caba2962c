"""Label selectors choose nodes by what they are."""
# cluster: head 1 CPU; 1 x 1 CPU, labels {"zone": "east"}; 1 x 1 CPU, labels {"zone": "west", "fast": "yes"}

import ray

ray.init()
names = {n["NodeID"]: n["NodeName"] for n in ray.nodes()}
for node in sorted(ray.nodes(), key=lambda n: n["NodeName"]):
    own = {k: v for k, v in node["Labels"].items() if not k.startswith("ray.io")}
    print(node["NodeName"], sorted(own.items()), "ray.io/node-id" in node["Labels"])


@ray.remote(num_cpus=0.1)
def here():
    return names[ray.get_runtime_context().get_node_id()]


@ray.remote(num_cpus=0.1)
class Actor:
    def here(self):
        return names[ray.get_runtime_context().get_node_id()]


for selector in (
    {"zone": "east"},
    {"zone": "west"},
    {"zone": "in(west,north)"},
    {"zone": "!east", "fast": "yes"},
    {"zone": "!in(east,west)"},
    {"fast": "!yes", "zone": "east"},
):
    actor = Actor.options(label_selector=selector).remote()
    print(selector, ray.get([here.options(label_selector=selector).remote(), actor.here.remote()]))
south = {"zone": "south"}
other = here.options(label_selector=south, fallback_strategy=[{"label_selector": {"zone": "east"}}])
print(ray.get(other.remote()))
pending = here.options(label_selector={"zone": "south"}).remote()
print(len(ray.wait([pending], timeout=1.5)[0]))
for wrong in ({"zone": 3}, {"zone": "in()"}, {"": "x"}, "zone"):
    try:
        here.options(label_selector=wrong).remote()
        print(wrong, "accepted")
    except Exception as error:
        print(wrong, type(error).__name__)
