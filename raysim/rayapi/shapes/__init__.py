"""torch in training workers: tensors have shapes, steps have lengths, values are unknown."""
