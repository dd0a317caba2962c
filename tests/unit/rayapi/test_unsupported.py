"""What is not emulated says so, in whichever process it is read."""

from __future__ import annotations

import pickle

from raysim.rayapi.unsupported import NotEmulatedError


def test_a_refusal_says_the_same_after_any_number_of_pickles() -> None:
    error = NotEmulatedError("ray.data", "tasks")
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    assert (
        str(again) == str(error) == "ray.data is not emulated by raysim. Emulated instead: tasks."
    )
    assert (again.name, again.instead) == ("ray.data", "tasks")
