"""Layer tables of any ``torch.nn.Module``; needs torch, which nothing else here does."""

from raysim.tracing.module import Script, trace

__all__ = ["Script", "trace"]
