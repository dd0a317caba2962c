"""raysim: throughput and memory per GPU of Ray and DeepSpeed jobs, before renting a GPU."""

__version__ = "0.1.0"
