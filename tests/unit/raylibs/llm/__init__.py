"""Tests of Ray Serve LLM."""
