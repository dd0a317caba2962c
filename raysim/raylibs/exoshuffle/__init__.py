"""Exoshuffle: a sort of terabytes as an application on Ray Core."""
