"""Actors of Ray Core that compute with torch on their GPUs."""
