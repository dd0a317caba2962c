"""The object manager of a node: pulls, pushes, primary copies, spilling."""
