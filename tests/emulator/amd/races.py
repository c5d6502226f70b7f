"""Races: accesses to the same memory by two waves that no barrier separates.

A block's waves pass barriers together; the time between two is an epoch. Two accesses of which one
is a write race if they come from different blocks, or from different waves of a block in the same
epoch. An access lasts until the wave has waited for it: one that is still under way at a barrier
belongs to the next epoch as well. What is found does not depend on the order in which waves ran.
Writes of the value that is there already do no harm, and atomic operations do not race with each
other.
"""

import numpy as np

_WAVE_BITS, _EPOCH_BITS = 8, 24


def stamp(block: np.ndarray, epoch: np.ndarray, wave: np.ndarray) -> np.ndarray:
    """Encode who accesses when; 0 is nobody."""
    return ((block + 1) << _EPOCH_BITS | epoch) << _WAVE_BITS | wave


def who(found: int) -> str:
    """Name the wave of a stamp."""
    block = (found >> _EPOCH_BITS + _WAVE_BITS) - 1
    return f"wave {found % (1 << _WAVE_BITS)} of block {block}"


class Shadow:
    """Who accessed each granule of a memory last.

    Parameters
    ----------
    size
        Bytes.
    granule
        Bytes that share an entry; accesses that do not begin at one make it smaller.
    """

    def __init__(self, size: int, granule: int):
        self.granule = granule
        count = -(-size // granule) + 1
        self._writers, self._readers = np.zeros(count, "i8"), np.zeros(count, "i8")
        # Where waves of one epoch have read, or (-1) several blocks.
        self._mixed = np.zeros(count, "i8")
        self._atomic = np.zeros(count, bool)

    def _entries(self, at: np.ndarray, size: int) -> np.ndarray:
        step = size & -size
        if self.granule > step or (self.granule > 1 and (at % self.granule).any()):
            lowest = int(np.bitwise_or.reduce(at, axis=None)) | step
            self._refine(min(self.granule, lowest & -lowest))
        first = at // self.granule
        if size == self.granule:
            return first
        return (first[:, None] + np.arange(size // self.granule)).ravel()

    def _refine(self, granule: int) -> None:
        times = self.granule // granule
        for name in ("_writers", "_readers", "_mixed", "_atomic"):
            setattr(self, name, np.repeat(getattr(self, name), times))
        self.granule = granule

    def read(self, at: np.ndarray, size: int, stamps: np.ndarray) -> np.ndarray:
        """Note reads; returns stamps of the writes that they race with."""
        entries = self._entries(at, size)
        mine = np.repeat(stamps, len(entries) // len(at))
        found = _conflicts(self._writers[entries], mine)
        before = self._readers[entries]
        self._readers[entries] = mine
        other = (before != 0) & (before != mine)
        # Two waves may read at once: what was noted is looked at again.
        other |= self._readers[entries] != mine
        if other.any():
            at_once = np.where(self._readers[entries] != mine, self._readers[entries], before)
            apart = (at_once >> _EPOCH_BITS + _WAVE_BITS) != (mine >> _EPOCH_BITS + _WAVE_BITS)
            together = (at_once >> _WAVE_BITS) == (mine >> _WAVE_BITS)
            chosen = other & (apart | together)
            places = entries[chosen]
            several = np.where(apart, -1, mine >> _WAVE_BITS)[chosen]
            self._mixed[places] = np.where(self._mixed[places] == -1, -1, several)
        return found

    def write(
        self, at: np.ndarray, size: int, stamps: np.ndarray, changed: np.ndarray, atomic: bool
    ) -> np.ndarray:
        """Note writes; returns stamps of the accesses that they race with.

        Parameters
        ----------
        changed : array of bool
            For each access, whether its value differs from what is there.
        atomic
            Whether they are atomic operations.
        """
        entries = self._entries(at, size)
        times = len(entries) // len(at)
        mine, changed = np.repeat(stamps, times), np.repeat(changed, times)
        before = self._writers[entries]
        harmless = ~changed | (self._atomic[entries] if atomic else False)
        found = _conflicts(np.where(harmless, 0, before), mine)
        readers, mixed = self._readers[entries], self._mixed[entries]
        read = _conflicts(readers, mine)
        read = np.where(mixed == -1, np.where(readers == 0, -1, readers), read)
        read = np.where((mixed > 0) & (mixed == mine >> _WAVE_BITS), readers, read)
        if not atomic:
            read = np.where(changed, read, 0)
        found = np.where(found == 0, read, found)
        self._writers[entries], self._atomic[entries] = mine, atomic
        twice = (self._writers[entries] != mine) & changed
        if not atomic and twice.any():
            found = np.where(twice & (found == 0), self._writers[entries], found)
        return found


def _conflicts(before: np.ndarray, mine: np.ndarray) -> np.ndarray:
    """Return the stamps among ``before`` that race with mine, else 0."""
    apart = (before >> _EPOCH_BITS + _WAVE_BITS) != (mine >> _EPOCH_BITS + _WAVE_BITS)
    together = (before >> _WAVE_BITS) == (mine >> _WAVE_BITS)
    return np.where((before != 0) & (before != mine) & (apart | together), before, 0)
