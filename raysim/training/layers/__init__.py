"""The layer table of a model, cut over ranks, in priced pieces."""
