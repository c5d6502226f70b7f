"""Memory of emulated threads: registers, and shared or global memory that watches for races."""

from copy import copy

import numpy as np

CHUNK = 16  # bytes that asynchronous copies and products access at once
POISON = -21931  # of integers that nothing has written; floating point numbers are NaN


class EmulationError(Exception):
    """What a GPU would do is undefined, or unknown to the emulator."""


def poison(size, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return np.full(size, np.array(POISON).astype(dtype))
    return np.full(size, dtype.kind != "b" and np.nan, dtype)


class Registers:
    """``data[thread, element]``: each thread has its own."""

    def __init__(self, name, size, dtype, machine):
        self.name, self.machine = name, machine
        self.data = poison((machine.threads, size), dtype)

    def viewed(self, dtype):
        """The same bits as numbers of another type."""
        if self.data.dtype == dtype:
            return self
        view = copy(self)
        view.data = self.data.view(dtype)
        return view

    def read(self, index):
        data = self.data
        if isinstance(index, slice):
            return data[:, index]
        if np.ndim(index) == 0:
            return data[:, index : index + 1]
        where = np.broadcast_to(index, (len(data), np.shape(index)[1]))
        self._inside(where)
        return np.take_along_axis(data, np.clip(where, 0, data.shape[1] - 1), 1)

    def write(self, index, value):
        mask, data = self.machine.mask, self.data
        if np.ndim(index) == 0:
            index = index if isinstance(index, slice) else slice(index, index + 1)
            if mask is None:
                data[:, index] = value
            else:
                # A choice that no thread makes otherwise is one row, for all threads.
                data[mask, index] = value[mask] if np.shape(value)[:1] == mask.shape else value
            return
        where = np.broadcast_to(index, (len(data), np.shape(index)[1]))
        self._inside(where)
        rows = np.arange(len(data)) if mask is None else np.flatnonzero(mask)
        value = np.broadcast_to(value, where.shape)
        data[rows[:, None], where[rows]] = value[rows]

    def _inside(self, where):
        mask = self.machine.mask
        where = where if mask is None else where[mask]
        if where.size and (where.min() < 0 or where.max() >= self.data.shape[1]):
            raise EmulationError(f"{self.name}: an index lies outside of its registers")


class Memory:
    """Shared memory (``per_block``) or global memory, as one row of elements for each block or one.

    An element knows who wrote it last and who read it since, and how many barriers of the block
    and of the warp they had passed: an access that no barrier orders after one by another thread
    is an error, as is one to the place of an asynchronous copy before it was waited for.
    """

    def __init__(self, name, data, machine, per_block=False, watched=True, unit=None, base=0):
        self.name, self.machine, self.per_block, self.watched = name, machine, per_block, watched
        self.data = np.tile(data, machine.blocks) if per_block else data
        self.size, self.item = len(data), data.itemsize
        self.first = self._first()
        self.unit = unit or self.item
        self.base, self.chunks = base, None  # address in shared memory
        if per_block and machine.mbarriers is not None:
            self.chunks = machine.mbarriers.chunks_of(self)
        if watched:
            count = self.data.nbytes // self.unit
            self.writer, self.reader, self.reader_warp = (np.full(count, -1) for _ in range(3))
            kinds = len(machine.passed(machine.numbers[:0]))
            self.written, self.read_at = (np.zeros((kinds, count), "int32") for _ in range(2))
            self.copying = np.zeros(count, bool)
            self.reads = []  # since the last barrier
            self.written_by_cluster = np.zeros(count, "int32")
            self.remote_reads = []  # since the last barrier of the cluster
            machine.memories.append(self)

    def viewed(self, dtype):
        """The same bits as numbers of another type."""
        if self.data.dtype == dtype:
            return self
        view = copy(self)
        view.data, view.item = self.data.view(dtype), dtype.itemsize
        view.size = self.size * self.item // view.item
        view.first = view._first()
        return view

    def _first(self):
        """Where the memory of each thread's block begins."""
        return self.machine.block[:, None] * self.size if self.per_block else 0

    def _units(self, place, *others):
        """Places of what is watched, which several numbers of one element may be."""
        count = self.item // self.unit
        if count == 1:
            return place, *others
        if not count:  # numbers that are smaller: accesses of one thread have all of a unit
            return place // (self.unit // self.item), *others
        each = place[..., None] * count + np.arange(count)
        return each, *(np.broadcast_to(x[..., None], each.shape) for x in others)

    def read(self, index):
        place, threads = self.places(index)
        if self.watched:
            active = slice(None) if self.machine.mask is None else self.machine.mask
            self._check_read(place[active], threads[active])
        return self.data[place]

    def read_remote(self, index, rank):
        """Read the memory of the block with a rank in the cluster."""
        machine = self.machine
        place, _ = self.places(index)
        own = machine.block[:, None]
        place = place + (own - own % machine.cluster + rank - own) * self.size
        active = slice(None) if machine.mask is None else machine.mask
        clusters = np.broadcast_to(machine.cluster_of[:, None], place.shape)
        units, clusters = self._units(place[active], clusters[active])
        self._check_copies(units, "read")
        if (self.written_by_cluster[units] >= machine.cluster_barriers[clusters]).any():
            raise EmulationError(f"{self.name}: read without a barrier of the cluster")
        self.remote_reads.append((units.ravel(), clusters.ravel()))
        return self.data[place]

    def write(self, index, value):
        place, threads = self.places(index)
        value = np.broadcast_to(value, place.shape)
        if self.machine.mask is not None:
            place, threads, value = (x[self.machine.mask] for x in (place, threads, value))
        self.store(place, threads, value)

    def store(self, place, threads, value):
        """Write elements of threads that are active."""
        if not self.watched:
            raise EmulationError(f"{self.name} is written, but was taken for an input")
        self.check_write(place, threads, value)
        self._set(place, threads, value)

    def _set(self, place, threads, value):
        self.data[place] = value
        found = self.data[place]
        if not (found == value).all() and not _same(found, value).all():
            raise EmulationError(f"{self.name}: threads write different values to one element")
        place, threads = self._units(place, threads)
        if self.chunks is not None:
            self.chunks.written(self._chunks(place), by=threads)
        self.writer[place] = threads
        self.written[:, place] = self.machine.passed(threads)
        clusters = self.machine.cluster_of[threads]
        self.written_by_cluster[place] = self.machine.cluster_barriers[clusters]

    def copy(self, place, threads):
        """Mark elements that an asynchronous copy is to write."""
        self.check_write(place, threads, None)
        self.copying[self._units(place)[0]] = True

    def landed(self, place, threads, value):
        """Write what a copy brings."""
        self.copying[self._units(place)[0]] = False
        self._set(place, threads, value)

    def vector(self, index, lanes):
        """Elements of a vector for every thread, ``[thread, lane]``, and the threads' numbers."""
        place, threads = self.places(np.asarray(index) + np.arange(lanes)[None])
        if (place[:, 0] * self.item % (lanes * self.item)).any():
            raise EmulationError(f"{self.name}: a vector of {lanes * self.item} bytes is unaligned")
        return place, threads

    def places(self, index):
        """Elements of all threads, and the threads' numbers."""
        machine = self.machine
        if isinstance(index, slice):
            index = np.arange(index.start, index.stop)[None]
        where = np.asarray(index)
        where = np.broadcast_to(where, (machine.threads, where.shape[1] if where.ndim == 2 else 1))
        active = where if machine.mask is None else where[machine.mask]
        if active.size and (active.min() < 0 or active.max() >= self.size):
            raise EmulationError(f"{self.name}: an index lies outside of its {self.size} elements")
        if machine.mask is not None:
            where = np.where(machine.mask[:, None], where, 0)
        if self.per_block:
            where = where + self.first
        return where, np.broadcast_to(machine.numbers[:, None], where.shape)

    def _ordered(self, then, warp, threads):
        """Whether what a warp did after ``then`` barriers is ordered before what threads do now."""
        machine = self.machine
        blocks, warps = machine.passed(threads)[:2]
        by_block = (machine.block_of_warp[warp] == machine.block[threads]) & (then[0] < blocks)
        ordered = by_block | ((warp == machine.warp[threads]) & (then[1] < warps))
        if machine.mbarriers is not None:
            ordered |= machine.mbarriers.knows_accesses(threads, warp, then[2])
        return ordered

    def _check_read(self, place, threads):
        place, threads = self._units(place, threads)
        self._check_copies(place, "read")
        if self.chunks is not None:
            chunks = self._chunks(place)
            self.chunks.check_read(chunks, threads, self.machine.mbarriers.clocks)
            self.chunks.read(chunks, self.machine.warp[threads])
        if self.per_block:
            self.reads.append((place, threads))
        self._check_order(place, threads)

    def check_order(self, index):
        """Refuse what other threads wrote without a barrier since."""
        active = self.machine.active()
        place, threads = (x[active] for x in self.places(index))
        self._check_order(*self._units(place, threads))

    def check_product(self, chunks, threads):
        """Refuse products of what other threads wrote without a barrier, or a fence, since."""
        if (self.chunks.by[chunks] >= 0).any():
            raise EmulationError(f"{self.name}: products of what was written without a proxy fence")
        units = CHUNK // self.unit
        place = (chunks[:, None] * units + np.arange(units)).ravel()
        if (self.writer[place] < 0).any():
            raise EmulationError(f"{self.name}: products of what no copy brought")
        self._check_order(place, np.repeat(threads, units))

    def _check_order(self, place, threads):
        clock = self.machine.clock
        if self.per_block and clock is not None and not (self.written[0, place] == clock).any():
            return
        writer = self.writer[place]
        other = (writer >= 0) & (writer != threads)
        if other.any():
            place_, threads_, writer_ = place[other], threads[other], writer[other]
            warp = self.machine.warp[writer_]
            if not self._ordered(self.written[:, place_], warp, threads_).all():
                raise EmulationError(f"{self.name}: read without a barrier after the write")

    def note_reads(self):
        """Note who read what, before a barrier of some threads or a write."""
        for place, threads in self.reads:
            self._note_read(place, threads)
        self.reads.clear()

    def _note_read(self, place, threads):
        machine = self.machine
        now, warp = machine.passed(threads), machine.warp[threads]
        before, before_warp = self.reader[place], self.reader_warp[place]
        live = (before != -1) & ~self._ordered(
            self.read_at[:, place], np.where(before_warp < 0, warp, before_warp), threads
        )
        # Of several warps, a barrier of the block alone is enough.
        live |= (before_warp == -2) & (self.read_at[0, place] == now[0])
        self.reader[place], self.reader_warp[place] = threads, warp
        several = (self.reader[place] != threads) | (live & (before != threads))
        self.reader[place[several]] = -2
        several = (self.reader_warp[place] != warp) | (live & (before_warp != warp))
        self.reader_warp[place[several]] = -2
        self.read_at[:, place] = now

    def check_write(self, place, threads, value):
        def differs():
            if value is None:
                return True
            _, found = self._units(place, ~_same(self.data[place], value))
            return found

        self._check_write(*self._units(place, threads), differs)

    def _check_write(self, place, threads, differs):
        """``differs()`` says of which elements the value changes; few writes ask."""
        machine = self.machine
        self._check_copies(place, "written")
        if self.chunks is not None:
            self.chunks.check_write(self._chunks(place), threads, machine.mbarriers.clocks)
        self.note_reads()
        if any(np.isin(place, read).any() for read, _ in self.remote_reads):
            raise EmulationError(f"{self.name}: written while other blocks of a cluster may read")
        writer = self.writer[place]
        other = (writer >= 0) & (writer != threads)
        if other.any() and (other := other & differs()).any():
            then, warp = self.written[:, place[other]], machine.warp[writer[other]]
            if not self._ordered(then, warp, threads[other]).all():
                raise EmulationError(f"{self.name}: written twice without a barrier between")
        if not self.per_block:
            return
        reader, warp = self.reader[place], self.reader_warp[place]
        other = (reader != -1) & (reader != threads)
        if other.any() and (other := other & differs()).any():
            place, threads, warp = place[other], threads[other], warp[other]
            several = warp < 0
            then = self.read_at[:, place]
            ordered = self._ordered(then, np.where(several, 0, warp), threads)
            by_block = then[0] < machine.passed(threads)[0]
            if not np.where(several, by_block, ordered).all():
                raise EmulationError(f"{self.name}: written without a barrier after a read")

    def _check_copies(self, place, what):
        if self.copying[place].any():
            raise EmulationError(f"{self.name}: {what} before its copy was waited for")

    def _chunks(self, units):
        return units * self.unit // CHUNK

    def _range(self, block, offset, size):
        """Units and chunks of some bytes of a block."""
        first = block * self.size * self.item + offset
        return (
            np.arange(first // self.unit, (first + size) // self.unit),
            np.arange(first // CHUNK, (first + size) // CHUNK),
        )

    def check_copy(self, block, offset, size, thread):
        """Refuse a thread's copy to some bytes of a block that others may still be about."""
        units, chunks = self._range(block, offset, size)
        self.chunks.check_copy(chunks, thread)
        self.note_reads()
        self.reader[units] = -1  # as checked
        if (self.writer[units] != -1).any():
            self._check_write(units, np.full(units.shape, thread), lambda: True)

    def copied(self, block, offset, data, bar, phase):
        """Write what a copy brings by the end of a phase of an mbarrier."""
        units, chunks = self._range(block, offset, len(data))
        self.viewed(np.dtype("uint8")).data[chunks[0] * CHUNK :][: len(data)] = data
        self.writer[units] = -1
        self.chunks.written(chunks, bar, phase)


def _same(a, b):
    return (a == b) | ((a != a) & (b != b))
