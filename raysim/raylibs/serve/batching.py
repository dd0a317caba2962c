"""``@serve.batch`` and ``@serve.multiplexed`` inside one replica.

Real counterpart: ``serve/batching.py`` (``_BatchQueue``), ``serve/multiplex.py`` (ray 2.60). The
queue makes a batch when it is full, or when its first request has waited; then it makes the next,
whether or not the one before has been processed: a semaphore of ``max_concurrent_batches`` lets
them in. Models are loaded one at a time; when there are too many the least recently used goes.

Not modelled: ``batch_size_fn``, streaming batches, time to unload a model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from raysim.raylibs.serve.config import BatchConfig, MultiplexConfig
from raysim.raylibs.serve.event_loop import ServeProcess
from raysim.raylibs.serve.request import Call
from raysim.units import to_ns


class BatchQueue:
    """Requests of one batched method on one replica."""

    __slots__ = (
        "_config",
        "_formed",
        "_forming",
        "_permits",
        "_process",
        "_run",
        "_timer",
        "sizes",
    )

    def __init__(
        self,
        process: ServeProcess,
        config: BatchConfig,
        run: Callable[[Sequence[Call], Callable[[], object]], object],
    ) -> None:
        self._process = process
        self._config = config
        self._run = run
        """``run(batch, done)`` calls the method."""
        self._forming: list[Call] = []
        self._formed: deque[list[Call]] = deque()
        self._permits = config.max_concurrent_batches
        self._timer = 0
        self.sizes: dict[int, int] = {}
        """How many batches there were of each size."""

    def put(self, call: Call) -> None:
        """A request has come."""
        self._forming.append(call)
        if len(self._forming) >= self._config.max_batch_size:
            self._close()
        elif len(self._forming) == 1:
            self._process.after(
                to_ns(self._config.batch_wait_timeout_s), self._timed_out, self._timer
            )

    def _timed_out(self, timer: int) -> None:
        if timer == self._timer and self._forming:
            self._close()

    def _close(self) -> None:
        self._timer += 1
        batch, self._forming = self._forming, []
        self.sizes[len(batch)] = self.sizes.get(len(batch), 0) + 1
        self._formed.append(batch)
        self._next()

    def _next(self) -> None:
        if self._permits and self._formed:
            self._permits -= 1
            self._run(self._formed.popleft(), self._done)

    def _done(self) -> None:
        self._permits += 1
        self._next()


class Models:
    """Models one replica has loaded, least recently used first."""

    __slots__ = ("_changed", "_config", "_loading", "_process", "_waiting", "loaded", "loads")

    def __init__(
        self, process: ServeProcess, config: MultiplexConfig, changed: Callable[[], object]
    ) -> None:
        self._process = process
        self._config = config
        self._changed = changed
        self._waiting: dict[str, list[Callable[[], object]]] = {}
        self._loading: deque[str] = deque()
        self.loaded: dict[str, None] = {}
        self.loads = 0

    def use(self, model_id: str, then: Callable[[], object]) -> None:
        """``then()`` once the model is there."""
        if model_id in self.loaded:
            del self.loaded[model_id]
            self.loaded[model_id] = None
            then()
            return
        waiting = self._waiting.setdefault(model_id, [])
        waiting.append(then)
        if len(waiting) == 1:
            self._loading.append(model_id)
            if len(self._loading) == 1:
                self._load()

    def _load(self) -> None:
        while len(self.loaded) >= self._config.max_num_models_per_replica:
            del self.loaded[next(iter(self.loaded))]
        load_s = self._config.load_s
        assert load_s is not None, "the user's own code loads its models"
        self._process.after(to_ns(load_s), self._is_loaded, self._loading[0])

    def _is_loaded(self, model_id: str) -> None:
        self.loads += 1
        self.loaded[model_id] = None
        self._loading.popleft()
        self._changed()
        for then in self._waiting.pop(model_id):
            then()
        if self._loading:
            self._load()
