"""A module beside the scripts: each process has its own."""

ME = None
