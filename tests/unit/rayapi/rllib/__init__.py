"""Tests of RLlib in programs."""
