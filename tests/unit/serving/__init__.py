"""Tests of LLM engines and fleets."""
