"""Chunks of 16 bytes of shared memory, which TMA writes and wgmma reads at times of their own."""

import numpy as np

from .memory import CHUNK, EmulationError

WARPS = 4  # of a warpgroup


class Chunks:
    """Which copy wrote a chunk last, and which products may still read it.

    Attributes
    ----------
    bar, phase : array
        The mbarrier that the copy completes on, -1 for none, and the phase that ends then.
    by : array
        The thread that wrote it last, and has not passed a fence of the asynchronous proxy since;
        -1 for none.
    product : array of [chunk, warpgroup]
        Number of the last group of products that reads it; -1 for none.
    epoch : array of [chunk, warp]
        The epoch between convergent barriers in which a warp read it last; -1 for none.
    """

    def __init__(self, memory, machine):
        size = memory.size * memory.item
        if size % CHUNK:
            raise EmulationError(f"{memory.name}: shared memory is no multiple of {CHUNK} bytes")
        self.name, self.mbarriers = memory.name, machine.mbarriers
        self.per_block = size // CHUNK
        count = self.per_block * machine.blocks
        self.bar, self.phase = np.full(count, -1, "int16"), np.zeros(count, "int32")
        self.by = np.full(count, -1)
        self.product = np.full((count, self.mbarriers.warps // WARPS), -1, "int32")
        self.epoch = np.full((count, self.mbarriers.warps), -1, "int32")

    def check_read(self, chunks, rows, known):
        """Refuse to read what a copy brings that was not waited for.

        Parameters
        ----------
        chunks, rows : array
            Numbers of chunks, and the row of ``known`` that each is read with.
        known : array
            Counts of ``Mbarriers.clocks``.
        """
        self._check_copies(chunks, rows, known, "read")

    def check_write(self, chunks, rows, known):
        """Refuse to overwrite what a copy or a product may still be about."""
        self._check_copies(chunks, rows, known, "written")
        numbers = self.product[chunks]
        for group in np.flatnonzero((numbers >= 0).any(tuple(range(chunks.ndim)))):
            first = self.mbarriers.first_product + group * WARPS
            done = known[rows, first : first + WARPS].min(-1)
            if (done <= numbers[..., group]).any():
                raise EmulationError(f"{self.name}: written while products may still read it")

    def read(self, chunks, warps):
        """Note that warps of all blocks read chunks, in their epochs of now."""
        self.epoch[chunks, warps % self.mbarriers.warps] = self.mbarriers.epochs[warps]

    def check_copy(self, chunks, thread):
        """Refuse a thread's copy to what others may still read."""
        known = self.mbarriers.clocks
        self.check_write(chunks, thread, known)
        if (known[thread, : self.mbarriers.warps] <= self.epoch[chunks]).any():
            raise EmulationError(f"{self.name}: written by a copy while threads may still read it")

    def _check_copies(self, chunks, rows, known, what):
        bar = self.bar[chunks]
        some = bar >= 0
        if some.any():
            rows = np.broadcast_to(rows, chunks.shape)[some]
            ended = known[rows, self.mbarriers.first_phase + bar[some]]
            if (ended <= self.phase[chunks[some]]).any():
                raise EmulationError(f"{self.name}: {what} before its copy was waited for")

    def end(self):
        """Refuse to end blocks before their copies: some thread must have waited."""
        known = self.mbarriers.clocks[:, self.mbarriers.first_phase :]
        known = known.reshape(len(self.bar) // self.per_block, -1, known.shape[1]).max(1)
        found = np.flatnonzero(self.bar >= 0)
        if (known[found // self.per_block, self.bar[found]] <= self.phase[found]).any():
            raise EmulationError(f"{self.name}: a block ends before a copy was waited for")

    def fence(self, threads):
        """Make what threads wrote visible to products."""
        self.by[np.isin(self.by, threads)] = -1

    def written(self, chunks, bar=-1, phase=0, by=-1):
        """Note a write that was checked: by a copy, or by threads."""
        self.bar[chunks], self.phase[chunks], self.product[chunks] = bar, phase, -1
        self.by[chunks] = by
        self.epoch[chunks] = -1
