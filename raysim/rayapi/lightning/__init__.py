"""PyTorch Lightning in training workers: its own code on shapes."""
