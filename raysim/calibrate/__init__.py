"""Fit a few physical constants to measured rows; see README.md."""
