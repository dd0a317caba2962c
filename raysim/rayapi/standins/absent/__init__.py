"""Packages that are not installed, as far as training scripts use them."""
