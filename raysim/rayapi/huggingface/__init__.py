"""transformers and accelerate in training workers: their own code on shapes."""
