"""Data-parallel engines: who reduces, gathers, keeps and frees what, and when, per ZeRO stage."""
