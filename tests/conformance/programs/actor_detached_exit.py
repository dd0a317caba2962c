"""What is left of a job when its driver goes: detached actors, and what they own."""
# cluster: 4 CPU

import time

import ray


@ray.remote(num_cpus=1)
class Service:
    def __init__(self, word):
        self.word = word
        self.kept = None

    def say(self):
        return self.word

    def keep(self, refs):
        self.kept = refs

    def read(self):
        try:
            return ray.get(self.kept[0], timeout=10)
        except Exception as error:
            return type(error).__name__

    def start(self):
        self.child = Service.options(num_cpus=0).remote("child")
        self.named = Service.options(name="named child", num_cpus=0).remote("named")
        return ray.get([self.child.say.remote(), self.named.say.remote()])

    def ask_child(self):
        try:
            return ray.get(self.child.say.remote(), timeout=10)
        except Exception as error:
            return type(error).__name__

    def job(self):
        return ray.get_runtime_context().get_job_id() == self.born

    def born_in(self):
        self.born = ray.get_runtime_context().get_job_id()


def find(name, namespace=None):
    try:
        return ray.get(ray.get_actor(name, namespace).say.remote(), timeout=20)
    except Exception as error:
        return type(error).__name__


def free(wanted):
    for _ in range(100):
        if ray.available_resources().get("CPU", 0) == wanted:
            break
        time.sleep(0.1)
    return ray.available_resources().get("CPU", 0)


ray.init(namespace="shop")
first_job = ray.get_runtime_context().get_job_id()
service = Service.options(name="service", lifetime="detached").remote("at your service")
other = Service.options(name="other", lifetime="detached", namespace="else").remote("elsewhere")
mortal = Service.options(name="mortal").remote("I must go")
print(ray.get([service.say.remote(), other.say.remote(), mortal.say.remote()]))
ray.get([service.keep.remote([ray.put("of the driver")]), service.born_in.remote()])
print(ray.get(service.read.remote()), ray.get(service.start.remote()))
ray.get(other.keep.remote([service.say.remote()]))
print("free", free(1))
del service, other
time.sleep(1)
print("handles gone", find("service"))
ray.shutdown()

ray.init(namespace="shop")
print("another job", ray.get_runtime_context().get_job_id() != first_job)
print(find("service"), find("other"), find("other", "else"), find("mortal"), find("named child"))
service = ray.get_actor("service")
print("free", free(2))
print("its child", ray.get(service.ask_child.remote()), "its job", ray.get(service.job.remote()))
ray.kill(service)
time.sleep(1)
print(find("service"), find("named child"))
ray.kill(ray.get_actor("other", "else"))
print("free", free(4))
ray.shutdown()

ray.init(namespace="shop")
print(sorted(e["name"] for e in ray.util.list_named_actors(all_namespaces=True)))
