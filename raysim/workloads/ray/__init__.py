"""Workloads for an emulated Ray cluster: programs that submit tasks, actors and objects."""
