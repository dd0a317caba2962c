"""Models that a step calls beside the one it trains: encoders, teachers, references.

Real counterpart: a frozen model's forward on the same GPU. A model whose parameters are all frozen,
given nothing that requires a gradient, learns nothing; so does any under ``torch.no_grad``. Once a
step has shown which model is trained, a forward of another takes its own time, and its weights lie
beside the trained one's.

Not modelled: what the forward itself holds at its peak (it is over before the trained model's); of
other batches than the first it takes as long by byte of its inputs. In a run's first step it takes
no time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from raysim.errors import ScenarioError
from raysim.rayapi.shapes import fetched, prediction
from raysim.rayapi.shapes.alive import Alive
from raysim.rayapi.shapes.apart import apart
from raysim.rayapi.shapes.compiled import is_mostly_compiled
from raysim.rayapi.shapes.devices import gpu_of
from raysim.rayapi.shapes.known import with_values
from raysim.rayapi.shapes.mode import no_value
from raysim.rayapi.shapes.plans import Wrapping, describe
from raysim.rayapi.shapes.prediction import Forward, Prediction
from raysim.rayapi.shapes.roles import (
    Role,
    again,
    bytes_of,
    example_of,
    is_context,
    is_token,
    samples_of,
)
from raysim.tracing import Script, trace
from raysim.tracing.operators import tensors
from raysim.tracing.storages import key_of, local_part
from raysim.training.compiler.feed import Feed
from raysim.training.settings.deepspeed import Optimizer

if TYPE_CHECKING:
    from raysim.rayapi.shapes.steps import Steps

MOST_SIZES = 8
"""Of inputs that a trained model only answers, which are traced; others are as the nearest."""
_NO_STATES = Optimizer(type="SGD", foreach=False)
_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)


class Beside:
    """Those of one worker."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._called: dict[int, Any] = {}
        """Modules that ran without learning, by identity."""
        self._frozen: dict[int, tuple[Any, bool]] = {}
        self._trained: set[int] = set()
        """Storages of the trained model's parameters."""
        self._as_of: tuple[Any, int] = None, 0
        """The trained model, and how many others had been called."""
        self._bytes = 0
        self._others: dict[int, bool] = {}
        self._normed: dict[int, bool] = {}
        """Whether modules have batch norms, by identity."""
        self._weights: dict[int, int] = {}
        """Bytes of others' weights by storage."""

    def learns(self, module: Any, args: Any, kwargs: Any) -> bool:
        """Whether autograd would keep anything of a call, where it is on."""
        known = self._frozen.get(id(module))
        if known is None or self._steps.several.on:  # which may freeze and thaw each other
            frozen = not any(p.requires_grad for p in module.parameters())
            known = self._frozen[id(module)] = module, frozen
        with _C.DisableTorchFunction():
            return not known[1] or any(t.requires_grad for t in tensors((args, kwargs)))

    def forget(self) -> None:
        """Parameters are no longer what they were."""
        self._frozen.clear()

    def called(self, module: Any) -> None:
        """It ran without learning."""
        self._called[id(module)] = module

    def trained(self, module: Any) -> int:
        """A step trains this one; bytes of the others' weights."""
        if self._as_of == (module, len(self._called)):
            return self._bytes
        self._as_of = module, len(self._called)
        self._others.clear()
        self._trained = {key_of(p) for p in module.parameters()}
        found: dict[int, int] = {}
        here = {"", *map(gpu_of, module.parameters())}  # those of another GPU are not beside it
        for other in self._called.values():
            share = self._steps.worker.context.world_size if sharded(describe(other)) else 1
            weights = (p for p in other.parameters() if here == {""} or gpu_of(p) in here)
            found |= {key_of(p): _bytes(local_part(p)) // share for p in weights}
        self._weights = found
        self._bytes = sum(n for storage, n in found.items() if storage not in self._trained)
        return self._bytes

    def weights(self, storages: Collection[int]) -> int:
        """Of those of them that it counts."""
        return sum(self._weights.get(storage, 0) for storage in storages)

    def script_bytes(self, role: Role, alive: Alive, *, whole: bool) -> int:
        """What the script itself has on the GPU beside all models; 0 where they are not ``whole``.

        Once a role's first step is over, for all ranks.
        """
        if role.script_bytes is None:
            models = [self._as_of[0], *self._called.values()]
            counted = {key_of(p) for m in models for p in m.parameters()} | role.kept
            counted |= {key_of(t) for t in self._steps.optimizers.states()}
            role.script_bytes = alive.bytes_but(counted) if whole else 0
        return role.script_bytes

    def holds(self, module: Any) -> bool:
        """Whether it is another than the trained one, and none of its parts."""
        known = self._others.get(id(module))
        if known is None:
            storages = map(key_of, module.parameters())
            known = self._others[id(module)] = self._trained.isdisjoint(storages)
        return known

    def _otherwise(self, module: Any) -> bool:
        """Whether it is in another mode than when it trains, in which it computes otherwise."""
        if id(module) not in self._normed:
            kind = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001  (of any dimension)
            self._normed[id(module)] = any(isinstance(m, kind) for m in module.modules())
        return self._normed[id(module)] and not module.training

    def evaluate(
        self, run: Callable[..., Any], module: Any, key: Any, role: Role | None,
        args: Any, kwargs: Any,
    ) -> Any:  # fmt: skip
        """A forward that learns nothing."""
        steps = self._steps
        graph = torch.is_grad_enabled() and steps.worker.answers  # which nobody goes back through
        if role is None:
            before = as_it_was(args), as_it_was(kwargs)
            tape, steps.mode.tape = steps.mode.tape, None  # no part of the loss that is under way
            half, steps.half = steps.half, None  # nor of another's autocast
            outputs = run(module, args, kwargs)
            role = steps.shared.roles[key] = Role(
                outputs=again(outputs, grad=graph), batch=samples_of((args, kwargs)),
                input_bytes=bytes_of((args, kwargs)), half=key[3] or steps.half,
            )  # fmt: skip
            steps.mode.tape, steps.half = tape, half
        else:
            before = args, kwargs
        self.called(module)
        visitors = fetched.of(steps, module)
        if visitors.size_bytes:
            steps.worker.copies(visitors.size_bytes, "h2d", pinned=False)
        steps.mode.alive.note(answer := again(role.outputs, grad=graph))
        if steps.latest is not None:
            if steps.several.on or self.holds(module) or self._otherwise(module):
                forward = self.forward(module, role, before, role.half)
            elif not steps.mode.generates and self._as_trained(role):
                forward = self._own_forward(steps.latest, role, key)
            else:
                forward = self._of_its_size(module, role, before, role.half)
            alone = describe(module).engine == "ddp"
            steps.evaluated(forward, within=alone and (module.training or self.holds(module)))
        elif steps.worker.prices_first:
            forward = self._untrained(module, role, before, role.half)
            steps.evaluated(visitors.beside(forward), within=False)
        elif steps.mode.generates:
            forward = self._of_its_size(module, role, before, role.half)
            steps.evaluated(visitors.beside(forward), within=False)
        return answer

    def _untrained(self, module: Any, role: Role, given: tuple[Any, Any], half: Any) -> Forward:
        """Of a model that no step has trained yet, spread as its engine has it."""
        steps, wrapping = self._steps, describe(module)
        world = steps.worker.context.world_size
        steps.worker.rests_with(wrapping.module, 1 / world if sharded(wrapping) else 1.0)
        return self._of_its_size(module, role, given, half)

    def _as_trained(self, role: Role) -> bool:
        """Whether its samples are as large as those of a step."""
        each = role.input_bytes / max(1, role.batch)
        trained = (r for r in self._steps.shared.roles.values() if r.model or r.between)
        return any(r.input_bytes == each * r.batch for r in trained)

    def _of_its_size(self, module: Any, role: Role, given: tuple[Any, Any], half: Any) -> Forward:
        """Traced for itself; token after token where the context has doubled."""
        steps, size_bytes, first, longest = self._steps, role.input_bytes, None, 0
        generates, size, inputs = steps.mode.generates, size_bytes, list(tensors(given))
        is_next = generates and is_token(inputs)
        if is_next:
            first, longest = inputs[0].shape, _context(inputs)
            size = longest.bit_length()
        each = steps.signature(module), half, generates, first
        sizes = steps.shared.answered.setdefault(each, {})
        if size not in sizes:
            is_learning = steps.latest is not None or generates
            if len(sizes) >= MOST_SIZES and is_learning and not is_next:
                nearest = min(sizes, key=lambda known: abs(known - size_bytes))
                return sizes[nearest].times(size_bytes / nearest)
            given = as_it_was(given[0], longest - 1), as_it_was(given[1], longest - 1)
            sizes[size] = self._first(module, role, given, half, spread=describe(module).meets)
        return sizes[size]

    def _own_forward(self, latest: Prediction, role: Role, key: Any) -> Forward:
        """Of the trained model itself, without gradients."""
        known, steps = self._steps.shared.forwards, self._steps
        if key not in known:
            plan = replace(latest.plan, micro_batch=role.batch)
            cluster, feed = latest.outcome.cluster, steps.feed_of(role)
            known[key] = prediction.forward(plan, cluster, feed, steps.seed)
        return known[key]

    def forward(self, module: Any, role: Role, given: tuple[Any, Any], half: Any) -> Forward:
        """Of its first batch, in proportion of another's; 0: it cannot be traced."""
        firsts = self._steps.shared.beside
        key = self._steps.signature(module), half
        if key not in firsts:
            spread = sharded(describe(module))
            found = self._first(module, role, given, half, spread=spread)
            firsts[key] = role.input_bytes, found
        first_bytes, first = firsts[key]
        share = role.input_bytes / max(1, first_bytes)
        return first if share == 1 else first.times(share)

    def _first(
        self, module: Any, role: Role, given: tuple[Any, Any], half: Any, *, spread: bool = False
    ) -> Forward:
        """``spread``: over all ranks, as its wrapper says; else whole on one."""
        steps = self._steps
        wrapping = describe(module)
        inner = wrapping.module
        try:
            # In inference mode composites reach no kernel of their own: ``linear`` is no product.
            with torch.inference_mode(mode=False), steps.tracing(inner):
                model = trace(
                    inner, with_values(example_of(inner, *given)), name=type(inner).__name__,
                    autocast=wrapping.cast_by(half), script=Script(unknown=no_value, answers=True),
                )  # fmt: skip
            whole = wrapping if spread else replace(
                wrapping, meets=False, mesh=None, deepspeed=None, engine="ddp"
            )  # fmt: skip
            whole = apart(steps, whole, model, trains=False)
            plan = whole.plan(
                model, world_size=steps.worker.context.world_size if spread else 1,
                micro_batch=role.batch, accumulation=1, optimizer=_NO_STATES,
                autocast=wrapping.cast_by(half), clipping=0.0,
            )  # fmt: skip
            compiled = steps.worker.answers and steps.compiled and is_mostly_compiled(model)
            plan = replace(
                plan, constants=steps.worker.run.session.training, torch_compile=compiled,
                cuda_graphs=compiled and steps.cuda_graphs,
            )  # fmt: skip
            cluster = steps.cluster(alone=0 if spread else plan.mesh.world)
            return prediction.forward(plan, cluster, Feed(), steps.seed)
        except ScenarioError as error:
            steps.say(f"{type(inner).__name__}, beside the trained model, takes no time: {error}")
            return Forward(ns=0, parts=())


def _context(inputs: Sequence[torch.Tensor]) -> int:
    """Tokens that a token is said after, itself among them; 0: nobody says."""
    return max((t.shape[-1] for t in inputs if is_context(t)), default=0)


def as_it_was(given: Any, tokens: int = 0) -> Any:
    """The same, but caches of transformers as they are now: a forward puts its own into them.

    ``tokens``: as long as after so many.
    """
    if isinstance(given, tuple):
        return tuple(as_it_was(part, tokens) for part in given)
    if isinstance(given, dict):
        return {name: as_it_was(value, tokens) for name, value in given.items()}
    if not hasattr(given, "get_seq_length"):
        return given
    made = copy(given)
    for name, held in vars(given).items():
        if isinstance(held, list):
            setattr(made, name, [_layer(layer, tokens) for layer in held])
        else:
            crosses = hasattr(given, "cross_attention_cache")
            setattr(made, name, as_it_was(held, 0 if crosses else tokens))
    return made


def _layer(layer: Any, tokens: int) -> Any:
    """Of a cache: keys and values of so many tokens, where they grow with them."""
    made = copy(layer)
    for name, held in vars(layer).items() if hasattr(layer, "get_seq_length") else ():
        if tokens > 0 and isinstance(held, torch.Tensor) and held.dim() == 4:
            sizes = (*held.shape[:2], tokens, held.shape[3])
            setattr(made, name, torch.empty(sizes, dtype=held.dtype, device=held.device))
    return made


def sharded(wrapping: Wrapping) -> bool:
    """Whether each rank holds a part of its weights alone."""
    found = wrapping.deepspeed
    return wrapping.engine == "fsdp" or (found is not None and found.zero.stage == 3)


def _bytes(p: torch.Tensor) -> int:
    """As a parameter of 4 bits counts them."""
    return p.numel() * p.element_size()
