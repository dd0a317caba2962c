"""The training tower: a plan is compiled into per-rank programs and played on virtual time."""
