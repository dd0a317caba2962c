"""From a plan to each rank's program."""
