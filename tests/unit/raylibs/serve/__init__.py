"""Tests of ``raysim.raylibs.serve``."""
