"""Launchers of training scripts: ``deepspeed``, ``torchrun`` and plain ``python``, without Ray."""
