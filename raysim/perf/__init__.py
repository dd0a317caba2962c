"""How long one thing takes: pure functions from shapes, sizes and datasheets to float seconds."""
