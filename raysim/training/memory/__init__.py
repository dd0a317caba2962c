"""What a GPU and its host hold, and when most."""
