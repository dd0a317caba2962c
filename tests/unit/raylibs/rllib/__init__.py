"""Tests of RLlib."""
