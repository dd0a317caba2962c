"""One worker process or driver: the owner side and the executor side of a Ray core worker."""
