"""Ray Core as separate rooms that talk by messages named as Ray's RPCs."""
