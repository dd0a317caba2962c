"""Saves and loads: which rank writes and reads which file, and how long that takes."""
