"""ZeRO-3's coordinator: small traces followed by hand."""

from __future__ import annotations

from raysim.training.engines.coordinator import Coordinator, persistent_names
from raysim.training.layers.sections import Gradient
from raysim.training.settings.deepspeed import ZeroConfig

A, B, C, D = (Gradient(name, 100) for name in "ABCD")
SMALL = Gradient("small", 1)


def names(parameters: tuple[Gradient, ...]) -> str:
    return "".join(p.name for p in parameters)


def walk(visits: list[tuple[Gradient, ...]], zero: ZeroConfig) -> list[tuple[str, str, str]]:
    """(gathered now, prefetched, released) at each visit."""
    every = [p for v in visits for p in v]
    coordinator = Coordinator(visits, persistent_names(every, zero), zero)
    log = []
    for i in range(len(visits)):
        fetch = coordinator.fetch()
        log.append((names(fetch.missing), names(fetch.prefetch), names(coordinator.release(i))))
    return log


def zero(**options: int) -> ZeroConfig:
    defaults = {"stage3_param_persistence_threshold": 10, "stage3_max_reuse_distance": 0}
    return ZeroConfig(stage=3, **defaults | options)  # type: ignore[arg-type]


def test_without_prefetch_every_visit_gathers_and_releases() -> None:
    log = walk([(A,), (B,), (C,)], zero(stage3_prefetch_bucket_size=0))
    assert log == [("A", "", "A"), ("B", "", "B"), ("C", "", "C")]


def test_prefetch_takes_whole_parameters_until_the_budget_is_crossed() -> None:
    """Budget 150: one of 100 does not cross it, so a second goes along."""
    log = walk([(A,), (B,), (C,), (D,)], zero(stage3_prefetch_bucket_size=150))
    assert log == [("A", "BC", "A"), ("", "D", "B"), ("", "", "C"), ("", "", "D")]


def test_live_parameters_throttle_prefetch_only() -> None:
    limit = zero(stage3_prefetch_bucket_size=1000, stage3_max_live_parameters=150)
    log = walk([(A,), (B,), (C,)], limit)
    assert log == [("A", "B", "A"), ("", "C", "B"), ("", "", "C")]


def test_reuse_within_distance_keeps_parameters_over_the_turn() -> None:
    """Forward A B C, backward C B A; distance 250 covers C, and B two visits on, but not A."""
    visits = [(A,), (B,), (C,), (C,), (B,), (A,)]
    log = walk(visits, zero(stage3_prefetch_bucket_size=0, stage3_max_reuse_distance=250))
    assert [released for _, _, released in log] == ["A", "", "", "C", "B", "A"]
    assert [missing for missing, _, _ in log] == ["A", "B", "C", "", "", "A"]


def test_small_parameters_are_gathered_once_and_stay() -> None:
    log = walk([(SMALL, A), (SMALL, B)], zero(stage3_prefetch_bucket_size=0))
    assert log == [("smallA", "", "A"), ("B", "", "B")]


def test_persistence_stops_at_the_model_threshold() -> None:
    many = [Gradient(f"p{i}", 8) for i in range(5)]
    limit = zero(stage3_model_persistence_threshold=20)
    assert persistent_names(many, limit) == {"p0", "p1"}


def test_parameters_a_prefetch_skipped_over_are_kept() -> None:
    """B's second use is skipped as available, so releasing B in between would lose it."""
    visits = [(A,), (B,), (C,), (B,)]
    log = walk(visits, zero(stage3_prefetch_bucket_size=1000))
    assert log[0] == ("A", "BC", "A")
    assert [r for _, _, r in log] == ["A", "", "C", "B"]
    assert log[3][0] == ""


def test_sequential_all_gather_prefetches_one_parameter() -> None:
    one = zero(stage3_prefetch_bucket_size=1000, stage3_allgather_sequential=True)
    assert walk([(A,), (B,), (C,)], one) == [("A", "B", "A"), ("", "C", "B"), ("", "", "C")]
