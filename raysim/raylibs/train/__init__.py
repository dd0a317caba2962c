"""Ray Train v2 as a client program of Ray Core."""
