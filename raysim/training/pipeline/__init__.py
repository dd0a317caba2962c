"""Which rank has which layers, and in which order passes run."""
