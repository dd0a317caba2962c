"""The module ``ray.tune.search`` (2.60): grid and random search, and the limit on searchers."""

from raysim.rayapi.unsupported import getattr_of
from raysim.raylibs.tune.sample import grid_search
from raysim.raylibs.tune.search.algorithms import BasicVariantGenerator, ConcurrencyLimiter

__getattr__ = getattr_of("ray.tune.search")

__all__ = ["BasicVariantGenerator", "ConcurrencyLimiter", "grid_search"]
