"""References to results of compiled graphs.

Real counterpart: ``python/ray/experimental/compiled_dag_ref.py``. Unlike an ``ObjectRef`` each can
be read once, and neither copied, pickled nor waited for.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from raysim.rayapi.calls import program_call
from raysim.rayapi.dag.channels import Failed
from raysim.rayapi.exceptions import GetTimeoutError, RayChannelError, RayChannelTimeoutError
from raysim.rayapi.failures import exception_of, raise_error

if TYPE_CHECKING:
    from raysim.rayapi.dag.compiled_dag import CompiledDAG


def _value(values: list[Any]) -> Any:
    """The only one, or the first error."""
    for value in values:
        if isinstance(value, Failed):
            raise_error(exception_of(value.error, ""))
    assert len(values) == 1, f"{len(values)} values of one reference"
    return values[0]


class _Result:
    """What both kinds have in common."""

    is_no_argument = True

    def __init__(self, dag: CompiledDAG, index: int, channel: int | None) -> None:
        self._dag = dag
        self._execution_index = index
        self._channel_index = channel
        self._used = False

    def __str__(self) -> str:
        return (
            f"{type(self).__name__}({self._dag.get_id()}, execution_index={self._execution_index}, "
            f"channel_index={self._channel_index})"
        )

    def __copy__(self) -> None:
        raise ValueError(f"{type(self).__name__} cannot be copied.")

    def __deepcopy__(self, _memo: Any) -> None:
        raise ValueError(f"{type(self).__name__} cannot be deep copied.")

    def __reduce__(self) -> Any:
        raise ValueError(f"{type(self).__name__} cannot be pickled.")

    def __del__(self) -> None:
        if not self._used and not self._dag.is_teardown:
            self._dag.unwanted(self._execution_index, self._channel_index)


class CompiledDAGRef(_Result):
    """What ``execute`` returns; for ``ray.get``."""

    @program_call
    def get(self, timeout: float | None = None) -> Any:
        """The result.

        Raises
        ------
        ValueError
            It was read before.
        RayChannelTimeoutError
            It is not there in time.
        """
        if self._used:
            raise ValueError(
                "ray.get() can only be called once on a CompiledDAGRef, and it was already called."
            )
        self._used = True
        try:
            return _value(self._dag.result(self._execution_index, self._channel_index, timeout))
        except RayChannelTimeoutError:
            raise
        except RayChannelError:
            self._raise_cause()
            raise

    def _raise_cause(self) -> None:
        """A closed channel may come of a loop that failed: then that is the error."""
        from raysim.rayapi.api import get

        try:
            get([ref for _, _, ref in self._dag.loops], timeout=10)
        except GetTimeoutError as error:
            raise Exception(  # noqa: TRY002  (Ray's own)
                "Timed out when getting the actor execution loop exception. This should not "
                "happen, please file a GitHub issue."
            ) from error
        except Exception as error:
            raise error from None


class CompiledDAGFuture(_Result):
    """What ``execute_async`` returns; for ``await``."""

    def __init__(self, dag: CompiledDAG, index: int, future: Any, channel: int | None) -> None:
        super().__init__(dag, index, channel)
        self._future = future

    def __await__(self) -> Generator[Any, None, Any]:
        if self._used:
            raise ValueError(
                "CompiledDAGFuture can only be awaited upon once, and it has already been awaited "
                "upon."
            )
        self._used = True
        dag, index = self._dag, self._execution_index
        if index > dag.finished_index:
            values = yield from self._future.__await__()
            if isinstance(values, Exception):
                raise values
            if index > dag.finished_index:  # another of its channels may have been faster
                dag.finished(index, values)
        return _value(dag.taken(index, self._channel_index))
