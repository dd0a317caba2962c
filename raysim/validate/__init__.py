"""Predicted against measured: rows of real runs, and what raysim says to them."""
