"""Ranks that are not alike: GPUs that differ and vary, slow nodes, narrow links, within one step.

A rank's kernels take a factor longer: its node's slowdown, times what its GPU is for good, times
what this step happens to be for it (both lognormal of mean 1, ``perf/jitter.py``). A slow host
stretches Python, dispatch and the CPU optimizer. A narrow NIC is a link of less capacity, which
NCCL does not route around: it cuts a collective into equal channels and waits for the slowest.

Every rank simulated (``exact: true``): each draws from a stream of its own, ``gpu/rank-3`` and
``step/rank-3``. Folded: a representative stands for the slowest of its peers, because all of them
wait for that one at every collective. In expectation over the draws it is the expected maximum. Of
a pipeline one replica is simulated, the one that takes longest: its slowest stage is the slowest of
all ranks, its other stages are as slow as the peers that share their layers. The host is the
slowest of a stage's; where slow hosts and slow GPUs are not the same ranks, folding overstates.

What GPUs ordinarily differ by is in their products' rates already (``perf/sustained.py``, GPU_CV),
and constants fitted on real runs hold the jitter of those runs; what is said here comes on top. Of
a rank on the CPU all is kernels.

Kernels of one rank that vary apart from each other (``kernel_cv``) are drawn for every rank, played
one by one or all at once (``graph/every_rank.py``); a folded representative leaves them out.

Not modelled: jitter of the host and of links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TypeVar

from raysim.kernel.rng import Streams
from raysim.perf.jitter import (
    combined_cv,
    expected_slowest,
    lognormal_parameters,
    slowest_quantile,
)
from raysim.training.communicators import Communicators
from raysim.training.jitter import Launches, launches, quantiles
from raysim.training.program import CPU, D2H, H2D, LOADER, Kind, Op, Program

NarrowLinks = tuple[tuple[int, int, float], ...]
"""(node, NIC, share of its rate that is left)."""
Scales = Counter[float]
"""How many ranks have their kernels stretched by what."""
T = TypeVar("T")
_ON_HOST = {CPU, LOADER}
_ON_WIRES = {H2D, D2H}


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What is not alike while a step runs; nothing by default. Nodes by their index."""

    gpu_cv: float = 0.0
    """Between GPUs, for good."""
    step_cv: float = 0.0
    """Of one GPU, from step to step."""
    kernel_cv: float = 0.0
    """Of one GPU, from each kernel to the next: looked at where every rank is."""
    kernels: tuple[tuple[int, float], ...] = ()
    """Nodes whose kernels take a factor longer."""
    hosts: tuple[tuple[int, float], ...] = ()
    """Nodes whose host threads take a factor longer."""
    links: NarrowLinks = ()
    quantile: float | None = None
    """Folded: as slow as the slowest rank is not exceeded with this probability; None: in the
    mean."""

    @property
    def quiet(self) -> bool:
        """Whether all ranks are alike."""
        return not (self.cv or self.kernel_cv or self.kernels or self.hosts or self.links)

    @property
    def cv(self) -> float:
        """Coefficient of variation of a GPU's kernels, over GPUs and steps."""
        return combined_cv(self.gpu_cv, self.step_cv)


ALIKE = Noise()


def disturb(
    programs: Sequence[Program],
    comms: Communicators,
    noise: Noise,
    streams: Streams,
) -> None:
    """Stretch the operations of compiled programs in place.

    Parameters
    ----------
    streams
        Of random numbers; not drawn from when folded.
    """
    if noise.quiet:
        return
    if comms.folded:
        factors_of = folded_factors(programs, comms, noise)
        for program, (factor, host) in zip(programs, factors_of, strict=True):
            _stretch(program, [factor] * len(program.step_ends), host)
        return
    hosts, scales = dict(noise.hosts), dict(noise.kernels)
    known: dict[int, Launches] = {}
    for program in programs:
        node = comms.placement[program.rank][0]
        steps, scale = len(program.step_ends), scales.get(node, 1.0)
        factors = drawn_factors(program.rank, steps, noise, streams, scale)
        apart = _apart(program, comms, noise.kernel_cv, streams, known) if noise.kernel_cv else ()
        _stretch(program, factors, hosts.get(node, 1.0), apart)


def folded_factors(
    programs: Sequence[Program], comms: Communicators, noise: Noise
) -> list[tuple[float, float]]:
    """By how much each representative's kernels, and its host, take longer."""
    if noise.quiet:
        return [(1.0, 1.0)] * len(programs)
    hosts = dict(noise.hosts)
    found = []
    for program, factor in zip(programs, _folded(programs, comms, noise), strict=True):
        peers = _stage_ranks(comms, program.rank)
        found.append((factor, max(hosts.get(comms.placement[r][0], 1.0) for r in peers)))
    return found


def drawn_factors(
    rank: int, steps: int, noise: Noise, streams: Streams, scale: float
) -> list[float]:
    """A rank's factor in each step; ``scale`` is its node's."""
    factors = [scale] * steps
    if noise.gpu_cv:
        own = _lognormal(streams, f"gpu/rank-{rank}", noise.gpu_cv)
        factors = [factor * own for factor in factors]
    if noise.step_cv:
        name = f"step/rank-{rank}"
        factors = [factor * _lognormal(streams, name, noise.step_cv) for factor in factors]
    return factors


def _lognormal(streams: Streams, name: str, cv: float) -> float:
    return float(streams(name).lognormal(*lognormal_parameters(cv)))


def _apart(
    program: Program, comms: Communicators, cv: float, streams: Streams, known: dict[int, Launches]
) -> list[float]:
    """Of each kernel of one rank's program, how much longer it takes for once."""
    ranks = _stage_ranks(comms, program.rank)
    stage = comms.mesh.coordinate(program.rank).pp
    if stage not in known:
        kernels = sum(map(is_kernel, program.ops))
        known[stage] = launches(streams, stage, kernels, len(ranks))
    found: list[float] = quantiles(cv)[known[stage][:, program.rank - ranks.start]].tolist()
    return found


def _stretch(
    program: Program, kernels: Sequence[float], host: float, apart: Sequence[float] = ()
) -> None:
    """Factors of each step's kernels, and of everything the host does; ``apart`` of each kernel."""
    ops, begin = program.ops, 0
    known: dict[tuple[Op, float], Op] = {}
    once = iter(apart)
    for factor, end in zip(kernels, program.step_ends, strict=True):
        for i in range(begin, end):
            own = factor * next(once) if apart and is_kernel(ops[i]) else factor
            key = ops[i], own
            if key not in known:
                known[key] = stretched(ops[i], own, host)
            ops[i] = known[key]
        begin = end


def stretched(op: Op, kernels: float, host: float) -> Op:
    """The operation on a slower rank; as it stands it may be other places' too."""
    slower = copy(op)
    if op.kind == Kind.LOCAL:
        slower.duration_ns = round(op.duration_ns * times_of(op, kernels, host))
    slower.host_ns = round(op.host_ns * host)
    slower.before_ns = round(op.before_ns * host)
    return slower


def times_of(op: Op, kernels: T, host: T) -> T | float:
    """What stretches an operation on a stream: a kernel's factor, the host's, or none."""
    if op.stream in _ON_WIRES:
        return 1.0
    return host if op.stream in _ON_HOST else kernels


def is_kernel(op: Op) -> bool:
    """Whether a GPU runs it, as long as the GPU takes."""
    return op.kind == Kind.LOCAL and op.stream not in _ON_HOST | _ON_WIRES


def _stage_ranks(comms: Communicators, rank: int) -> range:
    """Ranks of the same stage: the pipeline is the mesh's outermost axis."""
    size = comms.mesh.world // comms.mesh.pp
    first = rank // size * size
    return range(first, first + size)


def _folded(programs: Sequence[Program], comms: Communicators, noise: Noise) -> list[float]:
    """The factor of each stage's representative."""
    nodes = dict(noise.kernels)
    scale = [nodes.get(comms.placement[r][0], 1.0) for r in range(comms.mesh.world)]
    kernel_ns = [_kernel_ns(program) for program in programs]
    micro_batches = 1 + max(programs[0].micro_batches)
    factors = _longest_replica(comms, kernel_ns, scale, noise.cv, micro_batches)
    worst = max(range(len(programs)), key=lambda p: kernel_ns[p] * factors[p])
    everyone = Scales()
    for program, busy_ns in zip(programs, kernel_ns, strict=True):
        for r in _stage_ranks(comms, program.rank):
            everyone[scale[r] * busy_ns / max(1, kernel_ns[worst])] += 1
    del everyone[0.0]
    if everyone and noise.quantile is not None:
        factors[worst] = slowest_quantile(everyone.items(), noise.cv, noise.quantile)
    elif everyone:
        factors[worst] = max(factors[worst], expected_slowest(everyone.items(), noise.cv))
    return factors


def _longest_replica(
    comms: Communicators,
    kernel_ns: Sequence[int],
    scale: Sequence[float],
    cv: float,
    micro_batches: int,
) -> list[float]:
    """Of the replica whose pipeline takes longest, how slow each stage is.

    A pipeline takes its slowest stage for every micro-batch, and each stage once to fill and drain.
    """
    mesh = comms.mesh
    inner = mesh.tp * mesh.cp
    known: dict[tuple[tuple[float, int], ...], float] = {}
    replicas: list[list[float]] = []
    for d in range(mesh.dp):
        stages = []
        for p in range(mesh.pp):
            first = (p * mesh.dp + d) * inner
            some = tuple(sorted(Scales(scale[first : first + inner]).items()))
            if some not in known:
                known[some] = expected_slowest(some, cv)
            stages.append(known[some])
        replicas.append(stages)

    def takes(stages: list[float]) -> float:
        busy = [ns * factor for ns, factor in zip(kernel_ns, stages, strict=True)]
        return max(busy) + sum(busy) / micro_batches

    return max(replicas, key=takes)


def _kernel_ns(program: Program) -> int:
    """Kernel time of the last step."""
    begin = program.step_ends[-2] if len(program.step_ends) > 1 else 0
    return sum(op.duration_ns for op in program.ops[begin : program.step_ends[-1]] if is_kernel(op))
