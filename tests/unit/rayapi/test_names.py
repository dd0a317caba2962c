"""Other ways to say ``ray``: the package itself, and what raysim adds."""

from __future__ import annotations

import pytest

from tests.rayapi_parts import run


def test_the_package_itself_is_ray_in_a_program_that_raysim_runs() -> None:
    def main() -> list[int]:
        import raysim.rayapi as ray

        ray.init()

        @ray.remote
        def double(x: int) -> int:
            return 2 * x

        return ray.get([double.remote(i) for i in range(3)])

    assert run(main) == [0, 2, 4]


def test_a_name_that_ray_has_not_is_an_attribute_error() -> None:
    import raysim.rayapi as ray

    with pytest.raises(AttributeError):
        ray.no_such_name  # noqa: B018  (looking is the test)


def test_declared_costs_are_part_of_the_public_door() -> None:
    def main() -> float:
        import time

        import ray

        import raysim

        ray.init()

        @ray.remote
        @raysim.cost(seconds=2)
        def work() -> None:
            raysim.charge(seconds=1)

        start = time.time()
        ray.get(work.remote())
        return time.time() - start

    assert 3.0 < run(main) < 4.5
