"""A step as a graph of runs and meetings, evaluated for many costs, or for every rank, at once."""
