"""Records as trace files."""
