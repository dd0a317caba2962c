"""What-ifs from the middle of a run: the process splits, and every branch goes its own way."""

from raysim.branching.fork import BASELINE, Branches, Ending

__all__ = ["BASELINE", "Branches", "Ending"]
