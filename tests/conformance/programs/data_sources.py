"""A program's own sources and sinks of Ray Data."""
# cluster: 4 CPU

import tempfile
from pathlib import Path

import pyarrow as pa
import ray
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.datasource import (
    BlockBasedFileDatasink,
    Datasink,
    Datasource,
    FileBasedDatasource,
    ReadTask,
    RowBasedFileDatasink,
)


class Squares(Datasource):
    """Numbers up to n, as tables."""

    def __init__(self, n):
        super().__init__()
        self.n = n

    def estimate_inmemory_data_size(self):
        return 16 * self.n

    def get_read_tasks(self, parallelism, per_task_row_limit=None, data_context=None):
        def read(begin, end):
            numbers = list(range(begin, end))
            yield pa.table({"n": numbers, "square": [n * n for n in numbers]})

        step = max(1, self.n // parallelism)
        return [
            ReadTask(
                lambda begin=begin: read(begin, min(begin + step, self.n)),
                BlockMetadata(num_rows=step, size_bytes=None, input_files=None, exec_stats=None),
            )
            for begin in range(0, self.n, step)
        ]


class Words(FileBasedDatasource):
    """Files of words."""

    def _read_stream(self, f, path):
        yield pa.table({"word": f.readall().decode().split()})


class Counted(Datasink):
    """Keeps what it is told."""

    def on_write_start(self, schema=None):
        pass

    def write(self, blocks, ctx):
        return sum(BlockAccessor.for_block(block).num_rows() for block in blocks)

    def on_write_complete(self, write_result):
        print("complete", write_result.num_rows, sum(write_result.write_returns))

    def on_write_failed(self, error):
        print("failed", isinstance(error, ValueError))


class Refused(Counted):
    """Writes nothing."""

    def write(self, blocks, ctx):
        raise ValueError("no room")


class RowFiles(RowBasedFileDatasink):
    """A file of every row."""

    def write_row_to_file(self, row, file):
        file.write(str(row["square"]).encode())


class BlockFiles(BlockBasedFileDatasink):
    """A file of every task."""

    def write_block_to_file(self, block, file):
        file.write(block.to_pandas().to_csv(index=False).encode())


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
squares = ray.data.read_datasource(Squares(10), override_num_blocks=5)
print(Squares(1).get_name(), squares.count(), squares.sum("square"), squares.columns())
print(squares.sort("n").take(2), squares.map(lambda row: {"m": row["n"] + 1}).max("m"))
squares.write_datasink(Counted())
try:
    squares.write_datasink(Refused())
except Exception as error:
    print(isinstance(error, ValueError), "no room" in str(error))
with tempfile.TemporaryDirectory() as folder:
    words = Path(folder, "words")
    words.mkdir()
    for number in range(3):
        Path(words, f"{number}.txt").write_text("a b " * (number + 1))
    Path(words, "other.md").write_text("c")
    source = Words(str(words), file_extensions=["txt"])
    print(source.get_name(), ray.data.read_datasource(source).count())
    named = ray.data.read_datasource(Words(str(words), include_paths=True)).take_all()
    print(sorted({(row["word"], Path(row["path"]).name) for row in named}))

    rows = Path(folder, "rows")
    squares.write_datasink(RowFiles(str(rows), file_format="txt"))
    print(sorted(int(file.read_text()) for file in rows.glob("*.txt")))
    print({len(file.name) for file in rows.iterdir()})
    squares.write_datasink(BlockFiles(str(Path(folder, "blocks")), file_format="csv"))
    print(ray.data.read_csv(str(Path(folder, "blocks"))).sum("n"))
