"""Ray Data: lazy datasets, a streaming executor, shuffles, splits for trainers."""
