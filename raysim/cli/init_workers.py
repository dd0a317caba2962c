"""How many GPUs a starter scenario asks for: those that DeepSpeed's batch sizes leave room for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError

_EVERY_NODE = 1_000_000
"""More GPUs than an autoscaler may bring: as many as it does."""


def workers(deepspeed: Mapping[str, Any] | None, gpus: int) -> int | None:
    """Ranks of which ``train_batch_size`` is the batch, ``gpus`` at most where there is a choice.

    None: the JSON does not say, or no number of ranks would do.
    """
    config = deepspeed or {}
    train = _size(config, "train_batch_size")
    micro = _size(config, "train_micro_batch_size_per_gpu")
    accumulation = _size(config, "gradient_accumulation_steps")
    if train is None:
        return None
    shares, left = divmod(train, (micro or 1) * (accumulation or 1))
    if left:
        return None
    tensor = config.get("tensor_parallel")
    autotp = (_size(tensor, "autotp_size") if isinstance(tensor, Mapping) else None) or 1
    copies = _size(config, "sequence_parallel_size") or 1
    if micro and accumulation:
        return None if shares % autotp else shares * copies
    most = min(shares, gpus // copies)  # AutoTP's ranks count as replicas
    fitting = (n for n in range(most, 0, -1) if shares % n == 0 and n % autotp == 0)
    found = next(fitting, None)
    return None if found is None else found * copies


def gpus_of(cluster: Path, hardware: Mapping[str, Mapping[str, object]]) -> tuple[int, int]:
    """GPUs of a Ray file's nodes: at the start, and with all that its autoscaler may bring."""
    from raysim.scenario.anyscale import read_cluster_file
    from raysim.scenario.clusters import make_cluster
    from raysim.scenario.documents import Document
    from raysim.scenario.schema_cluster import ClusterSection

    files = read_cluster_file(cluster, str(cluster))
    data = {"from": cluster.name, "hardware": dict(hardware)}
    section, where = ClusterSection.model_validate(data), Document(file=str(cluster), data=data)
    found = []
    for asked in (None, _EVERY_NODE):
        made = make_cluster(section, where, files, asked)
        if made.spec is None:
            raise ScenarioError(made.errors)
        found.append(made.spec.num_gpus)
    return found[0], found[1]


def _size(config: Mapping[str, Any], key: str) -> int | None:
    """A batch size or a degree that the file says; ``"auto"`` and nonsense say nothing."""
    value = config.get(key)
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return int(value) if whole and value is not None else None
