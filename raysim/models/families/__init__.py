"""One file per group of related model families."""
