"""Layer tables of any ``torch.nn.Module``; needs torch, which nothing else here does."""

from raysim.tracing.module import trace

__all__ = ["trace"]
