import pytest

from raysim.kernel import Component, Simulation
from raysim.kernel.component import handler_name


@pytest.mark.parametrize(
    ("message", "handler"),
    [
        ("RequestWorkerLease", "on_request_worker_lease"),
        ("PinObjectIDs", "on_pin_object_ids"),
        ("InternalKVPut", "on_internal_kv_put"),
        ("GetObjectLocationsOwner", "on_get_object_locations_owner"),
        ("GPUsFreed", "on_gpus_freed"),
        ("CheckAlive", "on_check_alive"),
        ("Step2Done", "on_step2_done"),
    ],
)
def test_handlers_are_named_after_rays_messages(message, handler):
    assert handler_name(type(message, (), {})) == handler


def test_service_costs_of_an_instance_add_to_those_of_its_class():
    class Room(Component):
        service_ns = {int: 1, str: 2}  # noqa: RUF012

    sim = Simulation()
    room = sim.add(Room(sim, "a/b", service_ns={str: 5}))
    assert room.cost_ns == {int: 1, str: 5}
    assert Room.service_ns == {int: 1, str: 2}


def test_handlers_of_one_class_are_not_those_of_another():
    class Base(Component):
        got = ""

        def on_str(self, m, reply):
            self.got = f"base {m}"

    class Child(Base):
        def on_str(self, m, reply):
            self.got = f"child {m}"

    class Text(str):
        __slots__ = ()
        size_bytes = 1

    Text.__name__ = "Str"
    sim = Simulation()
    rooms = [sim.add(Base(sim, "base")), sim.add(Child(sim, "child"))]
    for room in rooms:
        room.send(room.address, Text("hi"))
    sim.run()
    assert [room.got for room in rooms] == ["base hi", "child hi"]


def test_two_rooms_cannot_share_an_address():
    sim = Simulation()
    sim.add(Component(sim, "a"))
    with pytest.raises(ValueError, match="'a'"):
        sim.add(Component(sim, "a"))
