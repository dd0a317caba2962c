"""A program's functions as hooks of the executor: what a map's tasks call, in their own process.

Real counterpart: ``ray/data/_internal/planner/plan_udf_map_op.py``. Functions are pickled once and
unpickled by every worker; an instance of a callable class is made by its actor's constructor. One
whose ``__call__`` is a coroutine runs in an event loop of the actor, some batches or rows of a task
side by side.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from raysim.rayapi import asyncio_loop
from raysim.rayapi.calls import begin_call, end_call, this_fiber
from raysim.rayapi.data.columns import (
    Columns,
    bytes_of,
    from_batch,
    from_rows,
    joined,
    rows_of,
    sliced,
    to_batch,
    to_rows,
)
from raysim.rayapi.data.map_retries import retried
from raysim.rayapi.data.strategies import ActorPoolStrategy, TaskPoolStrategy
from raysim.rayapi.exceptions import UserCodeException
from raysim.rayapi.imports import load_program
from raysim.rayapi.library_code import in_fiber, on_gpus, state_of
from raysim.rayapi.process_state import ProcessState
from raysim.rayapi.serialization import dump_code
from raysim.rayapi.session import Session
from raysim.raycore.scripts import Ask, Driver
from raysim.raylibs.data.blocks import Part

AUTO_BATCH_BYTES = 16 * 1024 * 1024
"""Of a batch of ``batch_size="auto"``: ``_DEFAULT_BATCH_SIZE_BYTES`` of ``map_transformer.py``."""
ACCELERATOR_SHARE = 0.001
"""Of the resource that says which accelerator a node has (``_constants.py`` of Ray)."""
Outputs = list[tuple[Columns, int, int]]
"""Blocks: content, rows, bytes."""
Work = Callable[[Any, list[Columns]], Columns]
"""Of the program's function and a task's blocks: its output."""
_STAGES = itertools.count()
BATCHES_AT_ONCE, ROWS_AT_ONCE = 4, 16
"""Of a coroutine, in one task: ``DEFAULT_ASYNC_BATCH_UDF_MAX_CONCURRENCY``, ``..._ROW_...``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One ``map_batches``, ``map``, ``filter`` or ``flat_map``: a ``Hook`` of ``raylibs.data``."""

    session: Session
    code: bytes
    kind: str
    batch_size: int | str | None = None
    batch_format: str | None = "numpy"
    fn_args: tuple[Any, ...] = ()
    fn_kwargs: dict[str, Any] = field(default_factory=dict)
    made_of: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    """Arguments of a callable class's constructor; None of a function."""
    name: str = "map"
    number: int = field(default_factory=lambda: next(_STAGES))

    def __call__(self, parts: list[Part]) -> Ask:
        """Run it in a fiber of the task's process."""

        def begin(d: Driver) -> Any:
            state = state_of(self.session, d.process)
            return in_fiber(state, lambda: self._work(state, parts), self.name).begin(d)

        return Ask(begin)

    def construct(self) -> Ask:
        """Make the instance, in a fiber of the actor's process."""

        def begin(d: Driver) -> Any:
            state = state_of(self.session, d.process)
            return in_fiber(state, lambda: self._construct(state), f"{self.name}.__init__").begin(d)

        return Ask(begin)

    def _construct(self, state: ProcessState) -> None:
        on_gpus(self.name)
        self._function(state)
        fiber = this_fiber()
        begin_call(fiber)
        fiber.settle()
        end_call(fiber)

    def _function(self, state: ProcessState) -> Callable[..., Any]:
        """The worker's own copy; of a class, its instance."""
        loaded = state.functions.get(self.number)
        if loaded is None:
            loaded = load_program(self.code)
            if self.made_of is not None:
                args, kwargs = self.made_of
                if _is_async(loaded) and state.loop is None:
                    asyncio_loop.start_loop(state, self.name)
                loaded = loaded(*args, **kwargs)
            state.functions[self.number] = loaded
        function: Callable[..., Any] = loaded
        return function

    def _work(self, state: ProcessState, parts: list[Part]) -> Outputs:
        on_gpus(self.name)
        return retried(partial(self._once, state, parts), self.name)

    def _once(self, state: ProcessState, parts: list[Part]) -> Outputs:
        try:
            return self._output(self._function(state), parts)
        except _WrongOutputError as error:
            raise error.as_ray_says() from None
        except Exception as error:
            raise UserCodeException("UDF failed to process a data block.") from error

    def _output(self, function: Callable[..., Any], parts: list[Part]) -> Outputs:
        blocks = [sliced(p.content, p.start, p.start + p.rows) for p in parts]
        if self.kind == "map_batches":
            made = joined(self._batches(function, blocks))
        else:
            rows = (row for block in blocks for row in to_rows(block))
            answers = self._answers(function, rows, ROWS_AT_ONCE)
            made = from_rows(list(self._rows(answers)))
        return [(made, rows_of(made), bytes_of(made))]

    def _batches(self, function: Callable[..., Any], blocks: list[Columns]) -> list[Columns]:
        whole = joined(blocks)
        rows = rows_of(whole)
        size = self._batch_rows(blocks) or max(rows, 1)
        batches = (
            to_batch(sliced(whole, begin, min(begin + size, rows)), self.batch_format)
            for begin in range(0, rows, size)
        )
        made: list[Columns] = []
        for _, answer in self._answers(function, batches, BATCHES_AT_ONCE):
            answers = answer if hasattr(answer, "__next__") else [answer]
            made += [_batch(one) for one in answers]
        return made

    def _answers(
        self, function: Callable[..., Any], items: Iterable[Any], at_once: int
    ) -> Iterable[tuple[Any, Any]]:
        """Each batch or row with what the function makes of it, in order."""
        if not _is_async(type(function)):
            return ((item, function(item, *self.fn_args, **self.fn_kwargs)) for item in items)
        given, found = list(items), []

        async def one(item: Any) -> Any:
            answer = function(item, *self.fn_args, **self.fn_kwargs)
            if inspect.isasyncgen(answer):
                return iter([part async for part in answer])
            return await answer

        async def work() -> None:
            found.extend(await asyncio_loop.gather_few([partial(one, g) for g in given], at_once))

        fiber = this_fiber()
        begin_call(fiber)
        fiber.settle()
        error = fiber.block(partial(asyncio_loop.run_in_loop, fiber.process.loop, work()))
        end_call(fiber)
        if error is not None:
            raise error
        return zip(given, found, strict=True)

    def _batch_rows(self, blocks: list[Columns]) -> int | None:
        """None: all at once; ``auto`` goes by the first block that has rows."""
        if not isinstance(self.batch_size, str):
            return self.batch_size
        first: Columns = next((block for block in blocks if bytes_of(block)), {})
        row_bytes = bytes_of(first) / max(rows_of(first), 1)
        return max(1, int(AUTO_BATCH_BYTES / row_bytes)) if row_bytes else None

    def _rows(self, answers: Iterable[tuple[Any, Any]]) -> Any:
        for row, answer in answers:
            if self.kind == "map":
                yield _row(answer)
            elif self.kind == "flat_map":
                yield from map(_row, _items(answer))
            elif answer:
                yield row


class _WrongOutputError(Exception):
    """A function returned what is no row or batch: no error of the function's own."""

    def as_ray_says(self) -> Exception:
        """What the task fails with."""
        kind = TypeError if "not iterable" in str(self) else ValueError
        return kind(*self.args)


def _batch(answer: Any) -> Columns:
    """As ``_validate_batch_output`` of the file above, and Arrow after it."""
    if isinstance(answer, list):
        raise _WrongOutputError(
            f"Error validating {_shown(answer)}: Returning a list of objects from `map_batches` "
            "is not allowed in Ray 2.5. To return Python objects, wrap them in a named dict field, "
            "e.g., return `{'results': objects}` instead of just `objects`."
        )
    if not (isinstance(answer, Mapping) or hasattr(answer, "columns")):
        raise _WrongOutputError(
            "The `fn` you passed to `map_batches` returned a value of type "
            f"{type(answer)}. This isn't allowed -- `map_batches` expects `fn` to return a "
            "`pandas.DataFrame`, `pyarrow.Table`, `cudf.DataFrame`, `numpy.ndarray`, `list`, or "
            "`dict[str, numpy.ndarray]`."
        )
    for name, values in answer.items() if isinstance(answer, dict) else ():
        if not isinstance(values, list) and not hasattr(values, "__array__"):
            raise _WrongOutputError(
                f"Error validating {_shown(answer)}: The `fn` you passed to `map_batches` returned "
                "a `dict`. `map_batches` expects all `dict` values to be `list` or `np.ndarray` "
                f"type, but the value corresponding to key {name!r} is of type {type(values)}. To "
                f"fix this issue, convert the {type(values)} to a `np.ndarray`."
            )
    try:
        made = from_batch(answer)
    except ValueError as error:
        raise _WrongOutputError(*error.args) from None
    rows = rows_of(made)
    for number, (name, column) in enumerate(made.items()):
        if len(column) != rows:
            raise _WrongOutputError(
                f"Column {number} named {name} expected length {rows} but got length {len(column)}"
            )
    return made


def _items(answer: Any) -> Iterable[Any]:
    if not isinstance(answer, Iterable):
        raise _WrongOutputError(f"'{type(answer).__name__}' object is not iterable")
    return answer


def _row(answer: Any) -> Any:
    """As ``_validate_row_output`` of the file above."""
    if isinstance(answer, Mapping):
        return answer
    raise _WrongOutputError(
        f"Error validating {_shown(answer)}: Standalone Python "
        "objects are not allowed in Ray >= 2.5. To return Python objects from map(), wrap them in "
        "a dict, e.g., return `{'item': item}` instead of just `item`."
    )


def _shown(answer: Any) -> str:
    text = str(answer)
    return text[:200] + "..." if len(text) > 200 else text


def _is_async(cls: Any) -> bool:
    """Whether instances are called as coroutines."""
    call = getattr(cls, "__call__", None)  # noqa: B004  (of the class, not of what it makes)
    return inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)


def call_of(
    session: Session, function: Any, kind: str, arguments: tuple[Any, ...] = (), **more: Any
) -> Call:
    """A program's function or class as a hook; ``arguments`` are its constructor's."""
    is_class = isinstance(function, type)
    return Call(
        session=session, code=dump_code(function), kind=kind, name=name_of(function),
        made_of=(arguments or ((), {})) if is_class else None,
        **more,
    )  # fmt: skip


def check_batch_size(batch_size: int | str | None, num_gpus: float | None) -> None:
    """As ``map_batches`` checks it.

    Raises
    ------
    ValueError
        There can be no such batches, or a GPU is asked for without a size.
    """
    if num_gpus and (batch_size is None or batch_size == "auto"):
        raise ValueError(
            "You must provide `batch_size` to `map_batches` when requesting GPUs. "
            "The optimal batch size depends on the model, data, and GPU used. "
            "We recommend using the largest batch size that doesn't result "
            "in your GPU device running out of memory. You can view the GPU memory "
            "usage via the Ray dashboard."
        )
    if isinstance(batch_size, int) and batch_size < 1:
        raise ValueError("Batch size can't be negative or 0")


def check_workers(fn: Any, options: Mapping[str, Any]) -> None:
    """As ``get_compute_strategy`` (``ray/data/_internal/util.py``) checks what runs a function.

    Raises
    ------
    ValueError
        A function has arguments of a constructor or actors, a class has tasks, or there can be no
        such workers.
    """
    is_class = isinstance(fn, type)
    compute, concurrency = options.get("compute"), options.get("concurrency")
    if options.get("fn_constructor_args") is not None and not is_class:
        raise ValueError(
            "``fn_constructor_args`` can only be specified if providing a "
            f"callable class instance for ``fn``, but got: {fn}."
        )
    if compute is not None:
        is_pool = compute == "actors" or isinstance(compute, ActorPoolStrategy)
        is_tasks = compute == "tasks" or isinstance(compute, TaskPoolStrategy)
        if (is_class and is_tasks) or (is_pool and not is_class):
            said, kind, pool = (
                ("callable class", "callable classes", "task") if is_class
                else ("function", "regular functions", "actor")
            )  # fmt: skip
            other = "an ActorPoolStrategy" if is_class else "a TaskPoolStrategy"
            raise ValueError(
                f"You specified the {said} {fn} as your UDF with the compute {compute}, but Ray "
                f"Data can't schedule {kind} with the {pool} pool strategy. To fix this error, "
                f"pass {other} to compute or None to use the default compute strategy."
            )
    elif isinstance(concurrency, tuple):
        if len(concurrency) not in (2, 3) or not all(isinstance(c, int) for c in concurrency):
            raise ValueError(
                "``concurrency`` is expected to be set as a tuple of integers, but got: "
                f"{concurrency}."
            )
        if not is_class:
            raise ValueError(
                f"``concurrency`` is set as a tuple of integers, but ``fn`` is not a callable "
                f"class: {fn}. Use ``concurrency=n`` to control maximum number of workers to use."
            )
    elif isinstance(concurrency, int):
        (ActorPoolStrategy if is_class else TaskPoolStrategy)(size=concurrency)
    elif concurrency is not None:
        raise ValueError(
            "``concurrency`` is expected to be set as an integer or a tuple of integers, but got: "
            f"{concurrency}."
        )


def custom_resources(options: Mapping[str, Any]) -> dict[str, float]:
    """Of a map's options: what is neither CPU nor GPU."""
    held = dict(options.get("resources") or {})
    if options.get("accelerator_type"):
        held[f"accelerator_type:{options['accelerator_type']}"] = ACCELERATOR_SHARE
    return held


def name_of(function: Any) -> str:
    """As it is called in an operator's name."""
    return str(getattr(function, "__name__", type(function).__name__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Blocks of a source whose rows are made by a function of their numbers."""

    session: Session
    make: Callable[[int, int], Columns]
    name: str

    def __call__(self, parts: list[Part]) -> Ask:
        """Parts say which rows."""

        def main() -> Outputs:
            made = [self.make(part.start, part.start + part.rows) for part in parts]
            return [(columns, rows_of(columns), bytes_of(columns)) for columns in made]

        def begin(d: Driver) -> Any:
            return in_fiber(state_of(self.session, d.process), main, self.name).begin(d)

        return Ask(begin)
