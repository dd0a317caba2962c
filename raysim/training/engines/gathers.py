"""How ZeRO-3 makes parameters whole: from shards on the GPU, the host or NVMe, or hpZ's copies.

Sources: ``deepspeed/runtime/zero/partition_parameters.py`` of 0.19 (``all_gather_coalesced``,
``_partition_param_sec``, the wait handles), ``zero/mics.py`` of 0.19.6.

hpZ: a parameter released for the first time since the last optimizer step leaves a second shard,
cut over ``zero_hpz_partition_size`` ranks; every later gather of it stays among them. qwZ: shards
travel as int8 with their scales. MiCS: shards of ``mics_shard_size`` ranks, gathered in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raysim.errors import ScenarioError
from raysim.training.engines.context import EngineContext
from raysim.training.engines.swapper import ParameterSwapper
from raysim.training.engines.weight_copies import Wire
from raysim.training.layers.sections import Gradient
from raysim.training.program import D2H, H2D, Call
from raysim.training.states.quantization import SCALE_BYTES, weight_groups
from raysim.training.states.zero import shard_numel

GATHER = "gather"
"""The all-gather stream: waits and copy-outs run here."""
HALF = 2
"""Bytes of what the quantizer reads and writes: always fp16."""


class Gathers:
    """Gathers parameters and gives them back.

    Parameters
    ----------
    parameters
        Everything stored here.
    swapper
        Of shards on NVMe.
    """

    def __init__(
        self, c: EngineContext, parameters: Sequence[Gradient], swapper: ParameterSwapper
    ) -> None:
        self.c = c
        self.zero = c.plan.zero
        self.swapper = swapper
        self.n = self.zero.shard_ranks(c.ranks)
        self.group = "dp" if self.n == c.ranks else f"dp_shard:{self.n}"
        self.in_place = self.zero.mics_shard_size > 0
        """MiCS gathers each parameter where it is used, all in one launch."""
        self.local = min(c.ranks_per_node, self.n)
        self.hierarchical = self.in_place and self.zero.mics_hierarchical_params_gather
        if self.hierarchical and self.n <= self.local:
            raise ScenarioError(
                f"mics_hierarchical_params_gather: shards of {self.n} ranks are on a single node; "
                "MiCS asserts that they span several"
            )
        self.hpz = min(self.zero.zero_hpz_partition_size, c.ranks)
        self.offload = self.zero.offload_param.device != "none"
        self.wire = Wire(c)
        self.sizes = {p.name: p.numel for p in parameters}
        self.second: set[str] = set()
        """Parameters with a second shard."""
        self.arriving: dict[str, int] = {}
        """Operation after which a parameter is whole."""

    @property
    def has_second(self) -> bool:
        """Whether hpZ is on."""
        return self.hpz > 1

    def _padded(self, parameters: Sequence[Gradient]) -> int:
        return sum(shard_numel(p.numel, self.n) * self.n for p in parameters)

    def all_gather(self, parameters: Sequence[Gradient], what: str) -> None:
        """Those that have a second shard from there, then the others."""
        second = [p for p in parameters if p.name in self.second]
        if second:
            self._gather(second, what, self.hpz, f"dp_shard:{self.hpz}")
        first = [p for p in parameters if p.name not in self.second] if second else parameters
        for width in self.wire.widths:  # each type by itself (``sort_dtypes``)
            alike = [p for p in first if self.width(p) == width] if self.wire.narrow else first
            if alike:
                self._gather(alike, what, self.n, self.group)

    def width(self, parameter: Gradient) -> int:
        """Bytes of an element that is gathered."""
        return self.wire.width(parameter) if self.wire.narrow else self.c.weight_bytes

    def _gather(self, parameters: Sequence[Gradient], what: str, ranks: int, group: str) -> None:
        """One coalesced all-gather of shards; several parameters are then copied out."""
        b, c = self.c.builder, self.c
        b.hook(c.costs.host.fetch_s * len(parameters))
        if ranks == c.ranks:
            group = "dp"
        padded = self._padded(parameters)
        size = padded * self.width(parameters[0])
        waits = self._shards_to_gpu(parameters, padded // ranks, what)
        if c.plan.separate_gathers:
            self._one_by_one(parameters, waits)
            return
        for p in parameters:
            b.alloc("gathered_parameter", self._whole_bytes(p.name), p.name, stream=GATHER)
        if ranks == 1:
            # ``NoGatherCoalescedHandle``: the shard itself, or its copy on the GPU.
            done = waits[0] if waits else c.aside(what, 0.0, GATHER, (), launches=0, kernels=0)
            self.arriving |= dict.fromkeys((p.name for p in parameters), done)
            return
        if self.zero.zero_quantized_weights:
            waits = self._quantized(parameters, padded, what, (ranks, group), waits)
        elif self.hierarchical:
            waits = self._over_nodes_first(size, len(parameters), what, waits)
        else:
            call = Call("all_gather", group, size)
            waits = (c.beside(f"all-gather {what}", call, waits),)
        moved = 2.0 * size
        if len(parameters) > 1 and not self.in_place:
            # The flat output and the copied-out tensors live side by side until the copies are
            # queued.
            b.alloc("communication", size, "coalesced all-gather", stream=GATHER)
            tensors = len(parameters)
            done = c.aside("copy out", moved, GATHER, waits, launches=tensors, kernels=tensors)
            b.free("communication", size, "coalesced all-gather", used_on=GATHER)
        else:
            done = waits[0]
        for p in parameters:
            self.arriving[p.name] = done

    def _one_by_one(self, parameters: Sequence[Gradient], waits: tuple[int, ...]) -> None:
        """``_allgather_param`` of DeepSpeed 0.3 to 0.5, over torch's list of parts.

        What is to become whole is zeroed, the GPU is waited for, and NCCL's flat result is copied
        part by part.
        """
        c, b = self.c, self.c.builder
        for p in parameters:
            size = self._padded((p,)) * c.weight_bytes
            b.alloc("gathered_parameter", self._whole_bytes(p.name), p.name, stream=GATHER)
            c.aside("zeros", size, GATHER, waits)
            b.synchronize("before all-gather")
            b.alloc("communication", size, "flat all-gather", stream=GATHER)
            gathered = c.beside(f"all-gather {p.name}", Call("all_gather", self.group, size), ())
            self.arriving[p.name] = c.aside(
                "copy out", 2.0 * size, GATHER, (gathered,), launches=self.n, kernels=self.n
            )
            b.free("communication", size, "flat all-gather", used_on=GATHER)

    def _over_nodes_first(
        self, size: int, tensors: int, what: str, waits: tuple[int, ...]
    ) -> tuple[int, ...]:
        """MiCS: gather from the same place on other nodes, put in order, then within the node."""
        c = self.c
        part, name = size // self.local, f"all-gather {what}"
        call = Call("all_gather", f"dp_across:{self.n}:{self.local}", part)
        across = c.beside(name, call, waits)
        kernels = 2 * tensors  # a clone, then a copy
        ordered = c.aside(
            "order chunks", 4.0 * part, GATHER, (across,), launches=kernels, kernels=kernels
        )
        call = Call("all_gather", f"dp_shard:{self.local}", size)
        return (c.beside(name, call, (ordered,)),)

    def _shards_to_gpu(
        self, parameters: Sequence[Gradient], own: int, what: str
    ) -> tuple[int, ...]:
        """Bring offloaded shards to the GPU; those on NVMe are read first."""
        if not self.offload:
            return ()
        c = self.c
        if parameters[0].name not in self.second:
            self.swapper.ensure(parameters)
        seconds = c.copy_s(
            own * float(c.weight_bytes), "h2d", pinned=self.zero.offload_param.pin_memory
        )
        return (c.builder.copy(f"shards of {what}", H2D, seconds),)

    def _quantized(
        self,
        parameters: Sequence[Gradient],
        padded: int,
        what: str,
        group: tuple[int, str],
        waits: tuple[int, ...],
    ) -> tuple[int, ...]:
        """Quantize the shards, gather integers and scales, dequantize what arrived."""
        b, c = self.c.builder, self.c
        ranks, name = group
        own = padded // ranks
        scales = weight_groups(own) * SCALE_BYTES
        # Several shards are put together; other types than fp16 are converted both ways.
        together = 2.0 * own * c.weight_bytes if len(parameters) > 1 else 0.0
        converted = c.plan.precision != "fp16"
        cast = own * (c.weight_bytes + HALF) if converted else 0.0
        kernels = 1 + (len(parameters) > 1) + converted
        moved = together + cast + own * (HALF + 1.0)
        ready = c.aside(f"quantize {what}", moved, GATHER, waits, launches=kernels, kernels=kernels)
        integers = padded + scales * ranks
        b.alloc("communication", own + scales + integers, "quantized weights", stream=GATHER)
        calls = (Call("all_gather", name, padded), Call("all_gather", name, scales * ranks))
        works = [c.beside(f"all-gather {what}", call, (ready,)) for call in calls]
        back = padded * (c.weight_bytes + HALF) if converted else 0.0
        kernels, moved = 1 + converted, padded * (1.0 + HALF) + back
        b.alloc("communication", padded * HALF, "dequantized weights", stream=GATHER)
        done = c.aside(
            f"dequantize {what}", moved, GATHER, works, launches=kernels, kernels=kernels
        )
        b.free("communication", padded * HALF, "dequantized weights", used_on=GATHER)
        b.free("communication", own + scales + integers, "quantized weights", used_on=GATHER)
        return (done,)

    def drop(self, name: str) -> None:
        """A parameter is released; hpZ keeps its second shard."""
        self.keep_second(name)
        self.swapper.release(name)
        self.c.builder.free("gathered_parameter", self._whole_bytes(name), name)

    def _whole_bytes(self, name: str) -> int:
        """What a whole parameter takes beside its shard; of one rank it is the shard."""
        aliased = self.n == 1 and not self.offload
        return 0 if aliased else self.sizes[name] * self.width(Gradient(name, 0))

    def _second_bytes(self, name: str) -> int:
        whole = shard_numel(self.sizes[name], self.n) * self.n
        return whole // self.hpz * self.c.weight_bytes

    def keep_second(self, name: str) -> None:
        """Copy this rank's part, then wait for it (``_partition_param_sec``)."""
        if not self.has_second or name in self.second:
            return
        b, c = self.c.builder, self.c
        size = self._second_bytes(name)
        self._hold(name)
        if self.offload:
            pinned = self.zero.offload_param.pin_memory
            waits = b.last_on("compute")
            done = b.copy("second shard", D2H, c.copy_s(size, "d2h", pinned=pinned), waits)
        else:
            seconds = c.costs.memory_s(3.0 * size, kernels=2)  # zeroed, then copied
            done = b.compute("second shard", "collective", seconds, launches=2)
        b.sync("second shard", (done,))

    def _hold(self, name: str) -> None:
        self.second.add(name)
        if not self.offload:
            label = f"second shard of {name}"
            self.c.builder.alloc("parameter", self._second_bytes(name), label)

    def hold_second(self, names: Iterator[str]) -> None:
        """Setting up partitions every parameter, and so makes all second shards."""
        for name in names if self.has_second else ():
            self._hold(name)

    def forget_second(self) -> None:
        """Weights were updated: second shards are stale (``invalidate_secondary_tensor``)."""
        for name in sorted(self.second) if not self.offload else ():
            label = f"second shard of {name}"
            self.c.builder.free("parameter", self._second_bytes(name), label)
        self.second.clear()
