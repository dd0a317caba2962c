"""The module ``ray.rllib``: unmodified RLlib scripts on the emulated cluster."""
