"""Parameters, gradients and optimizer states: who holds which part, where."""
