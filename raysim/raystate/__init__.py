"""What there is in a cluster at a moment, and what happened: Ray's listings and its timeline."""
