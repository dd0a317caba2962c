"""torch in workers of a training run: tensors have shapes, steps have lengths, values are unknown."""
