"""Low-rank adapters of an engine: what they hold, what they add to an iteration, how they come.

Real counterpart: vLLM's ``lora`` (``model_manager.py``, ``worker_manager.py``, ``layers``,
``ops/triton_ops``). An engine keeps room on its GPUs for ``max_loras`` adapters of
``max_lora_rank``, for every product of every layer, experts' too. In an iteration with adapters
each product is followed by three kernels: zeros, ``lora_shrink`` to the rank, ``lora_expand`` onto
its output; without any they are skipped. An adapter that is asked for and not on the GPUs is copied
there before the iteration, in the place of the one used longest ago; one that main memory has let
go is read anew.

Not modelled: ranks below ``max_lora_rank`` and products that an adapter leaves out (all are taken
to have all); adapters of embeddings and heads, a tenth of a slot where a family has them;
``fully_sharded_loras``. Compared with no measurement.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from math import ceil

from raysim.serving.decoder import BF16_BYTES, Block, Decoder
from raysim.serving.settings import EngineSettings
from raysim.serving.timing import EAGER_KERNEL_S, IterationTimes

KERNELS = 3
"""Of an adapted product: zeros, shrink, expand."""
COPIES = 4
"""Operators that put one slice of a product into its slot: A and B cleared, A and B copied."""
READ_BYTES_PER_S = 2e9
"""An adapter's file from the page cache into pinned memory; assumed."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product that adapters wrap, as one tensor-parallel rank has it."""

    k: int
    n: int
    slices: int = 1
    """Matrices in one, such as those of queries, keys and values: each has an A of its own."""
    experts: int = 0
    """That have such a product each; 0: every token passes it."""

    def elements(self, rank: int) -> int:
        """Of A and B together."""
        return max(1, self.experts) * rank * (self.slices * self.k + self.n)


def products(decoder: Decoder, block: Block, ranks: int = 1) -> list[Product]:
    """Those of one layer; weights that go in are split by columns, those that go out by rows."""
    hidden, found = decoder.hidden, []
    if block.output_parameters:
        into = ceil(block.input_parameters / hidden / ranks)
        out = ceil(block.output_parameters / hidden / ranks)
        found += [Product(hidden, into, 3 if block.kv_heads else 1), Product(out, hidden)]
    if block.dense_width:
        width, slices = ceil(block.dense_width / ranks), block.dense_columns // block.dense_width
        found += [Product(hidden, slices * width, slices), Product(width, hidden)]
    if block.experts:
        width, slices = ceil(block.expert_width / ranks), block.expert_columns // block.expert_width
        inner = block.narrowed or hidden
        found += [
            Product(inner, slices * width, slices, block.experts),
            Product(width, inner, 1, block.experts),
        ]
    return found


def adapter_bytes(decoder: Decoder, rank: int, ranks: int = 1) -> float:
    """Of one adapter of all products, or of what one of several tensor-parallel ranks has of it."""
    return BF16_BYTES * sum(
        b.count * p.elements(rank) for b in decoder.blocks for p in products(decoder, b, ranks)
    )


class Adapters:
    """Of one engine: which are where, and what they take.

    Parameters
    ----------
    times
        Of its iterations.
    settings
        With ``enable_lora``.
    """

    def __init__(self, times: IterationTimes, settings: EngineSettings) -> None:
        self._times, self._settings = times, settings
        self._on_gpu: OrderedDict[Hashable, None] = OrderedDict()
        self._in_memory: OrderedDict[Hashable, None] = OrderedDict()
        self._known: dict[tuple[int, int], float] = {}
        self.loads: Counter[str] = Counter()
        """Read into main memory, copied to the GPUs."""

    def applied_s(self, tokens: int, adapters: int) -> float:
        """What an iteration takes longer, if so many of its tokens pass so many adapters."""
        if not tokens:
            return 0.0
        if (tokens, adapters) not in self._known:
            times = self._times
            self._known[tokens, adapters] = sum(
                b.count * self._applied_s(p, b, tokens, adapters)
                for b in times.decoder.blocks
                for p in products(times.decoder, b, times.tp)
            )
        return self._known[tokens, adapters]

    def _applied_s(self, p: Product, b: Block, tokens: int, adapters: int) -> float:
        times, rank = self._times, self._settings.max_lora_rank
        groups = adapters
        if p.experts:
            tokens *= b.experts_per_token
            groups = max(1, min(tokens, round(adapters * times.touched(b, tokens / adapters))))
        shrink = times.compute.gemm_s(tokens, p.slices * rank, p.k, "bf16", groups)
        expand = times.compute.gemm_s(tokens, p.n, rank, "bf16", groups)
        added = tokens * p.n * BF16_BYTES / times.gather_bytes_per_s
        return KERNELS * times.kernel_s + shrink + expand + added

    def come_s(self, asked: Iterable[Hashable]) -> float:
        """Bring those to the GPUs that an iteration needs: how long it waits for them."""
        seconds = 0.0
        for adapter in asked:
            if adapter not in self._in_memory:
                most = self._settings.max_cpu_loras or self._settings.max_loras
                if len(self._in_memory) == most:
                    gone, _ = self._in_memory.popitem(last=False)
                    self._on_gpu.pop(gone, None)
                self.loads["read"] += 1
                seconds += self._bytes / READ_BYTES_PER_S
            self._in_memory[adapter] = None
            self._in_memory.move_to_end(adapter)
            if adapter not in self._on_gpu:
                if len(self._on_gpu) == self._settings.max_loras:
                    self._on_gpu.popitem(last=False)
                self.loads["copied"] += 1
                seconds += self._copy_s
            self._on_gpu[adapter] = None
            self._on_gpu.move_to_end(adapter)
        return seconds

    @property
    def _bytes(self) -> float:
        return adapter_bytes(self._times.decoder, self._settings.max_lora_rank)

    @property
    def _copy_s(self) -> float:
        times = self._times
        operators = COPIES * sum(
            b.count * p.slices for b in times.decoder.blocks for p in products(times.decoder, b)
        )
        own = adapter_bytes(times.decoder, self._settings.max_lora_rank, times.tp)
        return operators * EAGER_KERNEL_S + own / times.gpu.pcie_bytes_per_s
