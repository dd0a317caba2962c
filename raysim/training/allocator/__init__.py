"""torch's caching allocator, byte by byte."""
