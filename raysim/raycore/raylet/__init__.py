"""The raylet: one node's scheduler."""
