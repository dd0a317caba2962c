"""Where in the store's memory objects lie, and which of its pages each process has touched.

Real counterpart: ``dlmalloc`` over one shared mapping (``plasma/dlmalloc.cc``,
``plasma_allocator.cc``), and the kernel's page tables. The smallest free chunk that is large
enough is taken, the one at the lowest address of equals; if there is none, the memory above all
that was taken so far. A page that nobody has written to must be provided by the kernel when it
first is; each process that writes to it later must still map it once.

Not modelled: objects of less than 64 KiB (their pages are within the time of a put), headers and
alignment, and that fragmented memory refuses what would fit: here it lies above the end.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from raysim.units import KIB

SMALLEST_BYTES = 64 * KIB
"""Of objects that are placed."""
MOST_PAGES = 2**18
"""What is touched is known by this many pages, or by fewer of 64 KiB."""


class Arena:
    """The memory of one store."""

    def __init__(self, capacity_bytes: int) -> None:
        self.page_bytes = max(SMALLEST_BYTES, capacity_bytes // MOST_PAGES)
        self.top = 0
        """Above it nothing is taken."""
        self._free: list[tuple[int, int]] = []
        """Size and start of each chunk below."""
        self._sizes: dict[int, int] = {}
        """Of free chunks, by start."""
        self._starts: dict[int, int] = {}
        """Of free chunks, by end."""
        self._written = 0
        """Pages that somebody has written to: one bit each."""
        self._mapped: dict[str, int] = {}
        """Those that a process has, by its address."""

    def place(self, size_bytes: int) -> int:
        """Take memory for an object; where it begins, or -1 if it is too small to care."""
        if size_bytes < SMALLEST_BYTES:
            return -1
        at = bisect_left(self._free, (size_bytes, 0))
        if at == len(self._free):
            start, self.top = self.top, self.top + size_bytes
            return start
        size, start = self._free[at]
        self._take(size, start)
        if size > size_bytes:
            self._give(size - size_bytes, start + size_bytes)
        return start

    def free(self, start: int, size_bytes: int) -> None:
        """Give it back; free neighbours become one."""
        if start < 0:
            return
        end = start + size_bytes
        after = self._sizes.get(end)
        if after is not None:
            self._take(after, end)
            end += after
        before = self._starts.get(start)
        if before is not None:
            self._take(start - before, before)
            start = before
        if end == self.top:
            self.top = start
        else:
            self._give(end - start, start)

    def write(self, process: str, start: int, size_bytes: int) -> tuple[int, int]:
        """Its bytes on pages that nobody has written to, and on others new to this process."""
        if start < 0:
            return 0, 0
        first = start // self.page_bytes
        count = -(-(start + size_bytes) // self.page_bytes) - first
        pages = ((1 << count) - 1) << first
        mapped = self._mapped.get(process, 0)
        fresh = (pages & ~self._written).bit_count()
        new = (pages & ~mapped).bit_count()
        self._written |= pages
        self._mapped[process] = mapped | pages
        return size_bytes * fresh // count, size_bytes * (new - fresh) // count

    def forget(self, process: str) -> None:
        """It has ended."""
        self._mapped.pop(process, None)

    def _take(self, size: int, start: int) -> None:
        del self._free[bisect_left(self._free, (size, start))]
        del self._sizes[start]
        del self._starts[start + size]

    def _give(self, size: int, start: int) -> None:
        insort(self._free, (size, start))
        self._sizes[start] = size
        self._starts[start + size] = start
