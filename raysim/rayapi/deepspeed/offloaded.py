"""``engine.offload_states`` and ``reload_states``: a ZeRO engine's states in main memory meanwhile.

Real counterparts: ``offload_states`` of ``runtime/zero/{stage3,stage_1_and_2}.py``,
``runtime/zero/offload_config.py`` of 0.19. A rank's parts move over its own PCIe link; copies are
waited for, also those that are asked not to block. The first call also pins its buffers, which is
not paid for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from raysim.perf.host import copy_seconds
from raysim.rayapi.deepspeed import ops
from raysim.rayapi.deepspeed.utils import logger
from raysim.tracing.walk import shared_among
from raysim.training.engines.coordinator import persistent_names
from raysim.training.layers.sections import Gradient
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.states.zero import flat_partition_numel, optimizer_state_bytes, shard_numel

if TYPE_CHECKING:
    from raysim.rayapi.deepspeed.engine import DeepSpeedEngine


class OffloadDeviceEnum(StrEnum):
    """``offload_config.OffloadDeviceEnum``."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(StrEnum):
    """``offload_config.OffloadStateTypeEnum``."""

    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


_MASTER_BYTES = 4.0
"""ZeRO's copy of what a rank steps, also of fp32 weights."""
_FREED = OffloadStateTypeEnum.contiguous_grad_buffer
"""Given back, not copied."""


class Offloaded:
    """Which states of an engine are in main memory."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._engine = engine
        self._away: dict[OffloadStateTypeEnum, float] = {}
        self._pinned = True

    def check(self) -> None:
        """A forward is about to run.

        Raises
        ------
        RuntimeError
            Its weights are in main memory, as torch says it.
        """
        if OffloadStateTypeEnum.lp_params in self._away:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                "cuda and cpu! (the engine's states are offloaded: call reload_states() first)"
            )

    def offload(
        self, include: Container[Any] | None, device: Any, *, pin_memory: bool
    ) -> None:  # fmt: skip
        """Of ``include``, or all, what is not there yet.

        Raises
        ------
        AssertionError, ValueError, AttributeError
            As DeepSpeed refuses it.
        """
        zero = self._engine._settings.zero  # noqa: SLF001  (its own part)
        assert zero.offload_param.device == "none", (
            "Moving states across devices is not supported for offloaded parameters."
        )
        device = OffloadDeviceEnum(device)
        if device is OffloadDeviceEnum.none:
            logger.warning("No device specified for offloading states.")
            return
        if device is OffloadDeviceEnum.nvme:
            raise ValueError("NVMe offload is not supported for offloading states.")
        if not zero.stage:
            raise AttributeError("the optimizer of ZeRO stage 0 has no attribute 'offload_states'")
        found = {
            kind: size for kind, size in self._sizes().items()
            if kind not in self._away and (include is None or kind in include)
        }  # fmt: skip
        if zero.stage == 3 and {"optim_states", "hp_params"} & set(found):
            assert isinstance(self._engine.optimizer, ops.FusedAdam), (
                "Offloading is supported only for DeepSpeed FusedAdam."
            )
        self._away |= found
        self._pinned = pin_memory
        self._move(found, pinned=pin_memory)

    def reload(self) -> None:
        """All of them."""
        found, self._away = self._away, {}
        self._move(found, pinned=self._pinned)

    def _move(self, found: dict[OffloadStateTypeEnum, float], *, pinned: bool) -> None:
        steps = self._engine._steps  # noqa: SLF001  (its own part)
        steps.synchronize()
        gpu = steps.cluster(alone=1).gpu
        assert gpu is not None, "an engine is on GPUs"
        moved = sum(size for kind, size in found.items() if kind is not _FREED)
        seconds = copy_seconds(gpu, moved, "d2h", pinned=pinned, d2d_bytes_per_s=1.0)
        gone = sum(self._away.values()) + self._persistent_bytes() if self._away else 0.0
        steps.worker.offloads(gone, seconds)

    def _persistent_bytes(self) -> float:
        """Of small parameters that ZeRO-3 keeps whole between steps, until its states move."""
        engine = self._engine
        if engine.zero_optimization_stage() < 3:
            return 0.0
        every = dict(engine.module.named_parameters())
        given = [Gradient(name, p.numel()) for name, p in every.items()]
        names = persistent_names(given, engine._settings.zero)  # noqa: SLF001  (its own part)
        return float(sum(every[name].nbytes for name in names))

    def _sizes(self) -> dict[OffloadStateTypeEnum, float]:
        """Bytes of a rank's states, but those that offloading has put elsewhere for good."""
        engine, kinds = self._engine, OffloadStateTypeEnum
        zero = engine._settings.zero  # noqa: SLF001  (its own part)
        every = list(engine.module.parameters())
        width, own = max(p.element_size() for p in every), self._own(every)
        stepped = self._own(p for p in every if p.requires_grad)
        whole = zero.stage < 3
        found = {
            kinds.lp_params: (sum(p.numel() for p in every) if whole else own) * width,
            kinds.lp_grads: 0.0 if whole else stepped * width,  # stages 1 and 2 keep none
            kinds.hp_params: stepped * _MASTER_BYTES,
            kinds.optim_states: stepped
            * optimizer_state_bytes(engine.raysim_wrapping.optimizer or Optimizer()),
        }
        if not whole and zero.contiguous_gradients:
            found[_FREED] = float(zero.reduce_bucket_size * width)
        if zero.offload_optimizer.device != "none":
            gone = [kinds.hp_params, kinds.optim_states, *([] if whole else [kinds.lp_grads])]
            found = {kind: size for kind, size in found.items() if kind not in gone}
        return found

    def _own(self, parameters: Iterable[Any]) -> int:
        """Elements of a rank's parts: ZeRO-3 divides each parameter, ZeRO-1 and 2 all together."""
        mesh, given = self._engine.mesh, list(parameters)
        if self._engine.zero_optimization_stage() == 3:
            return sum(shard_numel(p.numel(), mesh.dp) for p in given)
        held: Counter[int] = Counter()
        for p in given:
            held[shared_among(p)] += p.numel()
        ranks = mesh.weight_ranks
        return sum(flat_partition_numel(n, ranks // (among or 1)) for among, n in held.items())
