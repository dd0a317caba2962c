"""The programs that everyone writes first, unmodified, on an emulated cluster."""

from __future__ import annotations

import pytest

from raysim.rayapi.loader import run_program
from tests.rayapi_parts import PROGRAMS, on_demand, printed
from tests.raycore_parts import ray_cluster

PRINTED = {
    "policy_simulator": ["4 2.247019", "[20, 20, 20]"],
    "read_array": [
        "[ 0.  2.  4.  6.  8. 10. 12. 14. 16. 18.]",
        "(1000000,) float64 999999000000.0 False",
        "False",
        "[np.float64(1.0), np.float64(2.0), np.float64(3.0)]",
        "ValueError",
    ],
    "counter": [
        "[101, 102, 103, 104, 105]",
        "[115, 125, 135]",
        "[[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]",
        "6",
        "ActorDiedError",
    ],
    "tree_reduce": ["36", "36", "True True True"],
    "parameter_server": ["0.333500", "3.181e-07", "True"],
    "hyperparameter_search": ["20 0.9899 3 0.29"],
    "map_reduce": ["the 6", "fox 4", "dog 3", "a 2", "and 2", "jumps 2", "31"],
    "nested_tasks": ["8", "[10, 20, 30]", "60", "180"],
    "monte_carlo_pi": ["0.0", "True True", "3.1344"],
    "collective_actors": [
        "[(0, 2, True), (1, 2, True)]",
        str([([3.0] * 4, [1.0, 2.0], [1.0, 1.0]), ([3.0] * 4, [1.0, 2.0], [3.0, 3.0])]),
        str([([1.0, 2.0, 3.0], [[0.0, 7.0], [1.0, 7.0]], [last]) for last in (0.0, 42.0)]),
        "[([2.0, 2.0], 1), ([2.0, 2.0], 0)]",
        "Trying to initialize a group twice.",
        "Ranks must be a permutation from 0 to '2'. Got '00'.",
        "The collective APIs shall be only used inside a Ray actor or task.",
        "[(False, -1), (False, -1)]",
    ],
}
"""Also what ray 2.60 prints: tests/real/test_rayapi_programs.py."""


@pytest.mark.parametrize("name", PRINTED)
def test_a_program_prints_what_it_prints_on_ray(name: str, monkeypatch) -> None:
    monkeypatch.setenv("RAY_LOG_TO_DRIVER", "0")
    assert printed(PROGRAMS / f"{name}.py") == PRINTED[name]


def test_a_program_runs_the_same_twice(monkeypatch) -> None:
    monkeypatch.setenv("RAY_LOG_TO_DRIVER", "0")
    digests = []

    def remember(request):
        cluster = on_demand()(request)
        digests.append(cluster.sim)
        return cluster

    for _ in range(2):
        printed(PROGRAMS / "parameter_server.py", remember)
    assert digests[0].digest == digests[1].digest


def test_every_program_is_tested() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(PRINTED)


def test_an_attribute_of_an_actor_hides_no_method() -> None:
    """Ray calls the function of the class: so does a program that names both alike."""

    def main() -> list[float]:
        import ray

        @ray.remote
        class Account:
            def __init__(self) -> None:
                self.balance = 100.0  # type: ignore[method-assign, assignment]

            def balance(self) -> float:
                return self.balance  # type: ignore[return-value]

            @staticmethod
            def currency() -> float:
                return 1.0

        account = Account.remote()
        return list(ray.get([account.balance.remote(), account.currency.remote()]))

    assert run_program(main, ray_cluster())[0] == [100.0, 1.0]
