"""The module ``ray.data.datasource``: a program's own sources, and where it writes to by itself.

Real counterpart: ``ray/data/datasource`` (2.60). A source's read tasks run as tasks of the dataset,
each with what ``get_read_tasks`` gave it; a sink's ``write`` runs in the task that has the blocks,
its other methods in the driver.

Not modelled: partitions, shuffled files and file systems of file sources, modes of writing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.rayapi.calls import program_call
from raysim.rayapi.data import described, executions
from raysim.rayapi.data.block import BlockAccessor, BlockMetadata
from raysim.rayapi.data.columns import (
    Columns,
    arrow,
    bytes_of,
    from_batch,
    joined,
    rows_of,
    sliced,
    to_arrow,
)
from raysim.rayapi.data.exchanges import Task
from raysim.rayapi.data.files import expanded
from raysim.rayapi.data.partitioning import (  # noqa: F401  (names of this module, too)
    FileShuffleConfig,
    Partitioning,
    PartitionStyle,
    PathPartitionFilter,
    PathPartitionParser,
)
from raysim.rayapi.data.read import dataset_of
from raysim.rayapi.data.storage import local, pay_for_writing, read_from_disk
from raysim.rayapi.library_code import play, session_here
from raysim.rayapi.serialization import dump_code, load_code
from raysim.rayapi.unsupported import getattr_of
from raysim.raylibs.data import specs
from raysim.raylibs.data.executor import available_cpus
from raysim.raylibs.data.plan import read_parallelism

if TYPE_CHECKING:
    from raysim.rayapi.data.dataset import Dataset
    from raysim.raylibs.data.stored import StoredFiles


# ---- sources -------------------------------------------------------------------------------------


class ReadTask:
    """What one task reads."""

    def __init__(
        self,
        read_fn: Callable[[], Iterable[Any]],
        metadata: BlockMetadata,
        schema: Any = None,
        per_task_row_limit: int | None = None,
    ) -> None:
        self.read_fn = read_fn
        self.metadata = metadata
        self.schema = schema
        self.per_task_row_limit = per_task_row_limit

    def __call__(self) -> Iterable[Any]:
        """Its blocks."""
        return self.read_fn()


class Datasource:
    """``ray.data.Datasource``: users override."""

    def get_name(self) -> str:
        """In the operator's name."""
        name = type(self).__name__
        return name if name == "Datasource" else name.removesuffix("Datasource")

    def estimate_inmemory_data_size(self) -> int | None:
        """Users override."""
        raise NotImplementedError

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Users override."""
        raise NotImplementedError

    @property
    def supports_distributed_reads(self) -> bool:
        """Whether every node can read it."""
        return True


class FileBasedDatasource(Datasource):
    """Files of which users override ``_read_stream``."""

    def __init__(
        self,
        paths: Any,
        *,
        file_extensions: list[str] | None = None,
        include_paths: bool = False,
        **_: Any,
    ) -> None:
        named = paths if isinstance(paths, list | tuple) else [paths]
        self._elsewhere = next(filter(None, map(described.described, named)), None)
        self._files = []
        if self._elsewhere is None:
            self._files = self._here(named, file_extensions)
        self._include_paths = include_paths

    def _here(self, named: Sequence[Any], extensions: list[str] | None) -> list[str]:
        title = type(self).__name__
        folders = [local(path, title, described.how_to_describe(path)) for path in named]
        found = [file for folder in folders for file in expanded(folder, extensions)]
        if not found:
            raise FileNotFoundError(f"No input files found to read: {named}.")
        return [str(file) for file in found]

    @property
    def elsewhere(self) -> StoredFiles | None:
        """Rows that are described, in place of files."""
        return self._elsewhere

    def estimate_inmemory_data_size(self) -> int | None:
        """What the files take."""
        return sum(Path(file).stat().st_size for file in self._files)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """As many files to each as to the others."""
        del per_task_row_limit, data_context
        shares = np.array_split(np.asarray(self._files), min(parallelism, len(self._files)))
        return [ReadTask(partial(self._read, s.tolist()), BlockMetadata()) for s in shares]

    def _read(self, files: list[str]) -> Iterator[Any]:
        pa = arrow(type(self).__name__)
        for file in files:
            read_from_disk(Path(file).stat().st_size)
            with pa.OSFile(file) as stream:
                for block in self._read_stream(stream, file):
                    columns = from_batch(block)
                    if self._include_paths:
                        columns["path"] = np.asarray([file] * rows_of(columns))
                    yield columns

    def _read_stream(self, f: Any, path: str) -> Iterator[Any]:
        """Users override."""
        raise NotImplementedError


@program_call
def read_datasource(
    datasource: Datasource, *, parallelism: int = -1, num_cpus: float | None = None,
    num_gpus: float | None = None, memory: float | None = None, ray_remote_args: Any = None,
    concurrency: int | None = None, override_num_blocks: int | None = None, **_: Any,
) -> Dataset:  # fmt: skip
    """``ray.data.read_datasource``."""
    del memory
    if isinstance(datasource, FileBasedDatasource) and datasource.elsewhere is not None:
        name = f"Read{datasource.get_name()}"
        return described.dataset_of(datasource.elsewhere, name, override_num_blocks)
    asked = override_num_blocks or (parallelism if parallelism > 0 else None)
    if asked is None:
        size = datasource.estimate_inmemory_data_size() or 0
        like = specs.Source(name="Read", rows=max(size, 1), row_bytes=1.0)
        cpus = play(lambda _: available_cpus())
        asked, _more = read_parallelism(like, executions.settings(), cpus)
    pickled = [dump_code(task) for task in datasource.get_read_tasks(asked)]

    def work(blocks: list[Columns]) -> list[Columns]:
        numbers = [int(number) for block in blocks for number in block["task"]]
        return [from_batch(made) for number in numbers for made in load_code(pickled[number])()]

    name = f"Read{datasource.get_name()}"
    first = {"task": np.zeros(1, int)}
    tasks = dataset_of(
        name, len(pickled), 8.0, lambda a, b: {"task": np.arange(a, b)}, len(pickled) or 1, first
    )
    return tasks._then(  # noqa: SLF001  (its own)
        specs.Map(
            name=name, hook=Task(session=session_here(), name=name, work=work), num_cpus=num_cpus,
            num_gpus=num_gpus or 0.0, concurrency=concurrency, slices=sliced, changes_rows=True,
            remote_args=(ray_remote_args or {}).get("resources") or {},
        )
    )  # fmt: skip


# ---- sinks ---------------------------------------------------------------------------------------


@dataclass
class WriteResult:
    """What all tasks of a sink have written."""

    num_rows: int
    size_bytes: int
    write_returns: list[Any]


class Datasink:
    """``ray.data.Datasink``: users override."""

    def on_write_start(self, schema: Any = None) -> None:
        """Before the first block."""

    def write(self, blocks: Iterable[Any], ctx: Any) -> Any:
        """Users override."""
        raise NotImplementedError

    def on_write_complete(self, write_result: WriteResult) -> None:
        """All is written."""

    def on_write_failed(self, error: Exception) -> None:
        """Some is not."""

    def get_name(self) -> str:
        """In the operator's name."""
        name = type(self).__name__
        return name if name == "Datasink" else name.removeprefix("_").removesuffix("Datasink")


class FilenameProvider:
    """``ray.data.datasource.FilenameProvider``: names of files that are written."""

    def __init__(self, dataset_uuid: str | None = None, file_format: str | None = None) -> None:
        self.dataset_uuid = dataset_uuid
        self.file_format = file_format

    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        """Of what one task writes."""
        first = "" if self.dataset_uuid is None else f"{self.dataset_uuid}_"
        ending = "" if self.file_format is None else f".{self.file_format}"
        return f"{first}{write_uuid}_{task_index:06}{ending}"


class _FileDatasink(Datasink):
    def __init__(
        self,
        path: Any,
        *,
        file_format: str | None = None,
        filename_provider: FilenameProvider | None = None,
        dataset_uuid: str | None = None,
        **_: Any,
    ) -> None:
        self.path = str(local(path, type(self).__name__))
        self.file_format = file_format
        self.filename_provider = filename_provider or FilenameProvider(dataset_uuid, file_format)

    def on_write_start(self, schema: Any = None) -> None:
        """The folder is there."""
        del schema
        Path(self.path).mkdir(parents=True, exist_ok=True)

    def _written(self, name: str, write: Callable[[Any], object]) -> None:
        """A file, and what it costs."""
        file = Path(self.path, name)
        with arrow(type(self).__name__).OSFile(str(file), "wb") as stream:
            write(stream)
        pay_for_writing(file.stat().st_size)


class RowBasedFileDatasink(_FileDatasink):
    """A file of every row: users override ``write_row_to_file``."""

    def write_row_to_file(self, row: dict[str, Any], file: Any) -> None:
        """Users override."""
        raise NotImplementedError

    def write(self, blocks: Iterable[Any], ctx: Any) -> None:
        """As above."""
        name = self.filename_provider.get_filename_for_task(ctx.write_uuid, ctx.task_idx)
        base, dot, ending = name.partition(".")
        rows = (row for block in blocks for row in BlockAccessor.for_block(block).iter_rows())
        for number, row in enumerate(rows):
            file = f"{base}_000000_{number:06}{dot}{ending}"
            self._written(file, partial(self.write_row_to_file, row))


class BlockBasedFileDatasink(_FileDatasink):
    """A file of every task: users override ``write_block_to_file``."""

    def __init__(self, path: Any, *, min_rows_per_file: int | None = None, **more: Any) -> None:
        super().__init__(path, **more)
        self.min_rows_per_file = min_rows_per_file

    def write_block_to_file(self, block: BlockAccessor, file: Any) -> None:
        """Users override."""
        raise NotImplementedError

    def write(self, blocks: Iterable[Any], ctx: Any) -> None:
        """As above."""
        name = self.filename_provider.get_filename_for_task(ctx.write_uuid, ctx.task_idx)
        whole = BlockAccessor(joined([from_batch(block) for block in blocks]))
        if whole.num_rows():
            self._written(name, partial(self.write_block_to_file, whole))


@program_call
def write_datasink(
    dataset: Dataset, datasink: Datasink, *, ray_remote_args: Any = None,
    concurrency: int | None = None,
) -> None:  # fmt: skip
    """``Dataset.write_datasink``."""
    numbers = itertools.count()
    answers: list[Any] = []
    size_bytes = 0
    name = f"Write{datasink.get_name()}" if datasink.get_name() else "Write"
    datasink.on_write_start()
    pickled = dump_code(datasink)

    def work(blocks: list[Columns]) -> list[Columns]:
        nonlocal size_bytes
        whole = joined(blocks)
        about = SimpleNamespace(
            task_idx=next(numbers), op_name=name, write_uuid=f"{executions.number_of(dataset):032x}"
        )
        answers.append(load_code(pickled).write([to_arrow(whole)], about))
        size_bytes += bytes_of(whole)
        return [whole]

    hook = Task(session=session_here(), name=name, work=work)
    wanted = specs.Map(
        name=name, hook=hook, concurrency=concurrency,
        remote_args=(ray_remote_args or {}).get("resources") or {},
    )  # fmt: skip
    try:
        consumed, _stats = executions.drained(dataset, None, wanted)
        datasink.on_write_complete(WriteResult(consumed.rows, size_bytes, answers))
    except Exception as error:
        datasink.on_write_failed(error)
        raise


__getattr__ = getattr_of("ray.data.datasource")
