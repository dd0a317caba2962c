"""Steps of several forwards: GANs, encoder and decoder, actor and critic, two towers of one model.

Real counterpart: autograd's graph. Each backward goes through the calls of modules that its loss
depends on, and no further than ``detach()``; those calls and the functions between them are one
*phase*, traced as one model. An optimizer's step takes the phases of its parameters since its last:
alike ones are micro-batches of one step, of others forward and backward pass. What the modules that
a phase does not train hold meanwhile (weights, gradients, optimizer states) lies beside it.
DeepSpeed's engines and FSDP's modules are told apart likewise (``engines.py``).

From the first such step on the graph is asked for: a module that was called so before answers with
a node that leads to what its own led to.

Forwards that wait for their backwards (a pipeline by hand) keep their activations meanwhile.
Not modelled: that of a phase's parameters only those in the optimizer are updated (all are, a few
kernels more), activations that a forward keeps for another phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from raysim.rayapi.shapes.beside import sharded
from raysim.rayapi.shapes.engines import Resting, around, put_part
from raysim.rayapi.shapes.input_gradients import Entry, graph, of_given, part
from raysim.rayapi.shapes.known import with_values
from raysim.rayapi.shapes.mode import Tape, no_value
from raysim.rayapi.shapes.plans import class_of, describe, wrapping_in
from raysim.rayapi.shapes.roles import Role, bytes_of, samples_of
from raysim.rayapi.shapes.waiting import Answer, Call, kind_of
from raysim.tracing import Script, trace
from raysim.tracing.operators import tensors
from raysim.tracing.storages import key_of
from raysim.tracing.walk import compiled_function
from raysim.training.settings.deepspeed import Optimizer

if TYPE_CHECKING:
    from raysim.rayapi.shapes.prediction import Prediction
    from raysim.rayapi.shapes.steps import Steps

_OLDEST = 16
"""Steps after which a forward that no backward has come to is forgotten."""


class Recording(Tape):
    """Functions and calls since the last moment when no forward was pending."""

    def __init__(self) -> None:
        super().__init__(())

    def extend(self, other: Tape | None) -> None:
        """With what another has written down."""
        self._calls += [] if other is None else other._calls  # noqa: SLF001  (its like)

    def leading_to(self, loss: torch.Tensor, used: Iterable[Call]) -> list[Entry]:
        """Entries that the loss is made of, in order; of calls only those ``used``."""
        wanted, found, those = {id(loss)}, [], set(used)
        for entry in reversed(self._calls):
            func, args, kwargs, out, _ = entry
            made = (out,) if isinstance(out, torch.Tensor) else tensors(out)
            if not any(id(t) in wanted for t in made):
                continue
            if (isinstance(func, Call) and func not in those) or _is_source(args, kwargs):
                continue  # what is drawn or filled is given, as any batch is
            wanted.update(id(t) for t in tensors((args, kwargs)))
            found.append(entry)
        return found[::-1]

    def begin_at(self, call: Call) -> None:
        """What was written down before it is no longer asked for."""
        first = next((i for i, entry in enumerate(self._calls) if entry[0] is call), 0)
        del self._calls[:first]


class _Shared:
    """What a copy of a module has too, and not a copy of it."""

    def __init__(self, entries: list[Entry], inputs: list[int], loss: int) -> None:
        self.entries, self.inputs, self.loss = entries, inputs, loss

    def __deepcopy__(self, _memo: Any) -> _Shared:
        return self


class Phase(torch.nn.Module):
    """Modules that one backward goes through, called as the script has called them."""

    def __init__(self, modules: list[Any], shared: _Shared) -> None:
        super().__init__()
        self.places = {id(m): f"part{i}" for i, m in enumerate(modules)}
        for name, m in zip(self.places.values(), modules, strict=True):
            put_part(self, name, describe(m).module)
        self.shared = shared

    @property
    def calls(self) -> int:
        """Of modules."""
        return sum(isinstance(func, Call) for func, *_ in self.shared.entries)

    def forward(self, *given: Any) -> dict[str, torch.Tensor]:
        """The loss, again."""
        new = dict(zip(self.shared.inputs, given, strict=True))
        for func, args, kwargs, out, is_compiled in self.shared.entries:
            there = tree_map_only(torch.Tensor, partial(_instead, new), (args, kwargs))
            run = func
            if isinstance(func, Call):
                run = getattr(self, self.places[id(func.module)])
            with compiled_function() if is_compiled else nullcontext():
                made = run(*there[0], **there[1])
            new |= zip(map(id, tensors(out)), tensors(made), strict=False)
        return {"loss": new[self.shared.loss]}


def _instead(new: dict[int, torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    return new.get(id(tensor), tensor)


class Several:
    """Of one worker."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.on = False
        """A step has trained several modules."""
        self.fullest: Prediction | None = None
        """The phase that takes most memory."""
        self.latest: Any = None
        """Of a step of one model: the forward that was run, as ``begin`` takes it."""
        self.idle_bytes = 0
        """Beside the phase that is asked of."""
        self._calls: list[Call] = []
        self._answers: dict[Any, Answer] = {}
        self._tape = Recording()
        self._phases: dict[Any, tuple[Any, int]] = {}
        """By key, with how often backward has run since their optimizer's last step."""
        self._reduced: dict[Any, int] = {}
        """Of them, how often it has reduced gradients."""
        self._known: dict[Any, tuple[Any, Any]] = {}
        """Phases that have been traced: their role's key and their module."""
        self._found: dict[Any, Prediction] = {}
        self._ahead: dict[Any, int] = {}  # by phase, forwards that waited for their backwards too
        self._forward_ns: dict[Any, int] = {}  # by kind
        self._graded: dict[int, Any] = {}
        """Modules whose gradients are there."""
        self._tries: bool | None = None
        """One module is called twice, for the first time: perhaps to look at what it gives."""
        self._last: dict[int, tuple[Any, int]] = {}
        """Optimizers, with the number of their last step."""
        self._resting = Resting()
        self._stepped: dict[int, Any] = {}
        """Modules that were trained one by one, the last one last."""

    @property
    def pending(self) -> bool:
        """A forward has run that a backward may yet come to."""
        return bool(self._calls)

    def begin(self, key: Any, module: Any, micro: int, last: Any, *, tries: bool) -> None:
        """What was one model's step is one of several modules, after ``micro`` backwards.

        ``last``: a forward that waits for its backward, as ``forward`` is given it, with its
        outputs; None: there is none. ``tries``: it is the same module's that is called now.
        """
        self._tries = tries and self._tries is None
        self.on = self._steps.shared.several = True
        if micro:
            self._phases[key, module] = module, micro
        if last is not None:
            followed, self._tape = self._steps.mode.tape, Recording()
            self._note(*last)
            self._tape.extend(followed)

    def forward(self, run: Any, module: Any, key: Any, args: Any, kwargs: Any) -> Any:
        """One that may learn."""
        steps = self._steps
        kind = kind_of(module, key, (args, kwargs))
        steps.steady, steps.recomputes, steps.half = False, "", None
        if (known := self._answers.get(kind)) is not None:
            outputs = known.again(args, kwargs)
            steps.recomputes, steps.half = known.recomputes, known.half
        else:
            outputs = self._run(run, module, args, kwargs)
        call = self._note(module, key, args, kwargs, outputs)
        if known is None:
            self._answers[kind] = Answer.of(call)
        return outputs

    def _run(self, run: Any, module: Any, args: Any, kwargs: Any) -> Any:
        self._steps.mode.tape = None
        try:
            return run(module, args, kwargs)
        finally:
            self._steps.mode.tape = self._tape

    def _note(self, module: Any, key: Any, args: Any, kwargs: Any, outputs: Any) -> Call:
        steps = self._steps
        call = Call(
            module=module, key=key, given=(args, kwargs), outputs=outputs, born=steps.worker.steps,
            recomputes=steps.recomputes, half=key[3] or steps.half,
            starts={t.grad_fn for t in tensors(outputs) if t.grad_fn is not None},
            training=module.training,
        )  # fmt: skip
        self._calls.append(call)
        self._tape.note(call, args, kwargs, outputs)
        steps.mode.tape = self._tape
        steps.beside.called(module)  # with its wrapper, which may have divided it
        call.paid_ns = self._forward_ns.get(call.kind(), 0) if steps.shared.places else 0
        steps.queued_ns += call.paid_ns  # other ranks may wait for what it gives
        return call

    def stepped(self, module: Any) -> None:
        """A step has trained this module alone."""
        self._stepped.pop(id(module), None)
        self._stepped[id(module)] = module

    def returns(self, module: Any) -> bool:
        """Whether steps train this one in turns with others that hold no part of it."""
        last = next(reversed(self._stepped.values()), module)
        if last is module or id(module) not in self._stepped:
            return False
        own = {key_of(p) for p in module.parameters()}
        return own.isdisjoint(key_of(p) for p in last.parameters())

    def asked(self, tape: Tape | None) -> bool:
        """Whether a loss is made of gradients that the script has asked for itself."""
        calls = () if tape is None else tape._calls  # noqa: SLF001  (as its like's)
        return any(call[0] is torch.autograd.grad for call in calls)

    # ---- backward --------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor) -> None:
        """Of the calls that the loss depends on."""
        steps = self._steps
        used = self._used(loss)
        if not used:
            return
        key, phase = self._phase(loss, used)
        key = key, phase
        _, count = self._phases.get(key, (phase, 0))
        self._phases[key] = phase, count + 1
        syncs = all(getattr(c.module, "require_backward_grad_sync", True) for c in used)
        self._reduced[key] = self._reduced.get(key, 0) + (steps.sync and syncs)
        self._graded |= {id(c.module): c.module for c in used if _keeps_gradients(c.module)}
        alike = sum(c.alike(used[0]) and (c in used or c.waits()) for c in self._calls)
        self._ahead[key] = max(self._ahead.get(key, 0), alike - len(used))
        if key in self._found:
            forward_ns, backward_ns = self._found[key].passes_ns
            self._forward_ns[used[0].kind()] = forward_ns // len(used)
            steps.queued_ns += forward_ns + backward_ns - sum(c.paid_ns for c in used)
        self._calls = [c for c in self._calls if c not in used]
        self._forget()

    def _used(self, loss: torch.Tensor) -> list[Call]:
        """Calls in the loss's graph, and in those that ``autograd.grad`` has gone through."""
        nodes = set(graph(loss))
        found, used = self._led_by(nodes), None
        asked = self.asked(self._tape)
        while asked and found != used:
            for func, args, *_ in self._tape.leading_to(loss, found):
                if func is torch.autograd.grad:
                    nodes.update(*map(graph, tensors(args[0])))
            found, used = self._led_by(nodes), found
        return found

    def _led_by(self, nodes: set[Any]) -> list[Call]:
        return [c for c in self._calls if not c.starts.isdisjoint(nodes)]

    def _forget(self) -> None:
        if not self._calls:
            self._tape = Recording()
        self._steps.mode.tape = self._tape if self._calls else None

    def _phase(self, loss: torch.Tensor, used: list[Call]) -> tuple[Any, Any]:
        entries = self._tape.leading_to(loss, used)
        names = tuple(getattr(e[0], "__name__", "") for e in entries)
        kind = tuple(c.kind() for c in used), names
        if kind not in self._known:
            self._known[kind] = self._traced(loss, used, entries, names)
        return self._known[kind]

    def _traced(
        self, loss: torch.Tensor, used: list[Call], entries: list[Entry], names: tuple[str, ...]
    ) -> tuple[Any, Any]:
        """Its role, which all ranks share, and the phase as a module of this one."""
        steps = self._steps
        given = [t for c in used for t in tensors(c.given) if t.requires_grad and not t.is_leaf]
        entries, inputs = of_given(entries, given), _inputs(entries)
        modules = list({id(c.module): c.module for c in used}.values())
        kinds = list(dict.fromkeys(class_of(describe(m).module).__name__ for m in modules))
        title = "_and_".join(kinds)
        shared = _Shared(entries, [id(t) for t in inputs], id(loss))
        phase = Phase(modules, shared)
        phase.__class__ = type(title, (Phase,), {})
        wrapping = around(phase, [wrapping_in(m, steps.within) for m in modules], steps.say)
        phase.raysim_wrapping = wrapping  # type: ignore[assignment]
        half = next((c.half for c in used if c.half), None)
        place = tuple((c.key, *c.kind()[2:], modules.index(c.module)) for c in used)
        key = title, place, names, half, True, "several"
        asked = {id(t) for func, args, *_ in entries if func is part for t in args[-1]}
        example = [
            t if t.is_leaf else t.detach().requires_grad_(id(t) in asked) for t in inputs
        ]  # fmt: skip
        if key not in steps.shared.roles:
            role = Role(
                outputs=None, recomputes=max(c.recomputes for c in used), half=half,
                batch=samples_of(example), input_bytes=bytes_of(example),
            )  # fmt: skip
            steps.mode.tape = None
            with steps.tracing(phase):
                role.model = trace(
                    phase, with_values(example), name=title, autocast=wrapping.cast_by(half),
                    say=steps.say,
                    script=Script(
                        unknown=no_value, kept=partial(role.learn_kept, example),
                        casts_itself=role.learn_casts,
                    ),
                )  # fmt: skip
            steps.shared.roles[key] = role
        return key, phase

    # ---- the update ------------------------------------------------------------------------------

    def step(self, run: Callable[..., Any] | None, optimizer: Any, own: Optimizer | None) -> None:
        """Of one optimizer, or (without ``run``) an engine: the phases of its parameters."""
        steps = self._steps
        number = steps.worker.steps
        _, before = self._last.get(id(optimizer), (None, -1))
        self._last[id(optimizer)] = optimizer, number
        wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
        mine = [
            (key, *self._phases.pop(key)) for key, (phase, _) in list(self._phases.items())
            if any(id(p) in wanted for p in phase.parameters())
        ]  # fmt: skip
        if not mine:
            return
        found: list[tuple[Prediction, Any, int]] = []
        for key, phase, count in mine:
            kept = steps.shared.roles[key[0]].kept_bytes(phase.parameters())
            self.idle_bytes = self._idle_bytes(phase) + self._ahead.get(key, 0) * kept
            reduced = self._reduced.pop(key, 0)
            asked = steps.asked_of(key[0], phase, count, reduced, own)
            found.append((asked, phase, count))
            self._found[key] = asked
        found.sort(key=lambda each: (-each[0].peak_bytes, -each[0].step_ns))
        whole, largest, _ = found[0]
        updated = {id(p) for p in largest.parameters()}
        more_ns = 0
        for each, phase, count in found[1:]:
            apart = updated.isdisjoint(id(p) for p in phase.parameters())
            more_ns += each.step_ns if apart else sum(each.passes_ns) * count
        if self.fullest is None or whole.peak_bytes > self.fullest.peak_bytes:
            self.fullest = whole
        steps.take_step(whole, more_ns + self._unused_ns(before), optimizer)
        if run is None or sharded(describe(largest)):
            self._resting.note(optimizer, whole, largest)
        if run is not None:
            steps.optimizers.begin(run, optimizer)
        if self._tries and sum(phase.calls * count for _, phase, count in mine) == 1:
            self._end()
        self._tries = False
        self._forget()

    def _end(self) -> None:
        """A forward without a backward was a trial; what trains is one module, called once."""
        self.on = self._steps.shared.several = False
        self._calls, self.fullest = [], None

    def _unused_ns(self, before: int) -> int:
        """Forwards that no backward came to between two steps of an optimizer."""
        steps, found_ns = self._steps, 0
        for call in self._calls:
            if call.charged or call.born >= before or steps.latest is None:
                continue
            call.charged = True
            role = Role(
                outputs=None, batch=samples_of(call.given), input_bytes=bytes_of(call.given)
            )
            found_ns += steps.beside.forward(call.module, role, call.given, call.key[3]).ns
        left = [c for c in self._calls if c.born > steps.worker.steps - _OLDEST]
        if left and left[0] is not self._calls[0]:
            self._tape.begin_at(left[0])
        self._calls = left
        return found_ns

    def _idle_bytes(self, phase: torch.nn.Module) -> int:
        """Gradients and optimizer states of parameters that are no part of the phase."""
        here = {key_of(p) for p in phase.parameters()}
        found: dict[int, int] = {
            key_of(p): p.nbytes
            for m in self._graded.values() for p in m.parameters()
            if p.requires_grad and key_of(p) not in here
        }  # fmt: skip
        states = 0
        for optimizer, _ in self._last.values():
            if self._resting.has(optimizer):
                continue
            for p, state in optimizer.state.items():
                if isinstance(p, torch.Tensor) and key_of(p) not in here:
                    states += sum(t.nbytes for t in tensors(list(state.values())) if t.dim())
        engines = self._resting.bytes_but(here, self._steps.beside.weights)
        return sum(found.values(), states) + engines

    def zeroes(self, owner: Any) -> None:
        """``zero_grad()`` of a module or an optimizer: its gradients are no longer there."""
        if not self._graded:
            return
        groups = getattr(owner, "param_groups", None)
        own = owner.parameters() if groups is None else (p for g in groups for p in g["params"])
        gone = {id(p) for p in own}
        self._graded = {
            key: m for key, m in self._graded.items()
            if not all(id(p) in gone for p in m.parameters())
        }  # fmt: skip


def _keeps_gradients(module: Any) -> bool:
    """From a backward on; an engine keeps its own."""
    return describe(module).engine == "ddp"


def _is_source(args: Any, kwargs: Any) -> bool:
    """Whether a function makes tensors of none."""
    return next(tensors((args, kwargs)), None) is None


def _inputs(entries: list[Entry]) -> list[torch.Tensor]:
    """Tensors that no entry has made; what modules are given first, for their batch."""
    made: set[int] = set()
    found: dict[int, tuple[bool, torch.Tensor]] = {}
    for func, args, kwargs, out, _ in entries:
        for t in tensors((args, kwargs)):
            if id(t) not in made and not isinstance(t, torch.nn.Parameter):
                found.setdefault(id(t), (not isinstance(func, Call), t))
        made.update(id(t) for t in tensors(out) if id(t) not in found)
    return [t for _, t in sorted(found.values(), key=lambda each: each[0])]
