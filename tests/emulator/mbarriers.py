"""Barriers in shared memory (mbarrier): arrivals, bytes of copies, phases, and what they order.

What happens before what is known by vector clocks: of each thread, how far it knows others to have
come. An arrival joins the thread's clock into that of the phase; a wait joins the clock of the
phase that it is sure to have waited for into the thread's, whatever the timing.
"""

import numpy as np

from .chunks import Chunks
from .memory import EmulationError

WARP = 32
MOST = 32  # barriers of a block
KEPT = 4  # phases of a barrier whose clocks are kept
MOST_BYTES = 2**20 - 1  # pending


class Mbarriers:
    """All barriers of the blocks that run at once.

    Attributes
    ----------
    clocks : array of [thread, count]
        For every warp of the block: its epochs that are past, then its groups of products that are
        done; for every barrier of the block: its phases that ended.
    epochs : array
        Of each warp: barriers and arrivals of all of its threads. One thread's arrival tells
        others only about the warp's epochs before.
    gathered, released : array
        Clocks of all arrivals at each barrier, and what they were as its last phases ended.
    """

    def __init__(self, machine):
        self.machine, self.warps = machine, -(-machine.per_block // WARP)
        self.first_product, self.first_phase = self.warps, 2 * self.warps
        counts = self.first_phase + MOST
        self.clocks = np.zeros((machine.threads, counts), "int32")
        self.epochs = np.zeros(machine.blocks * self.warps, int)
        self.numbers = {}  # of barriers, by their addresses
        shape = machine.blocks, MOST
        self.count, self.pending, self.bytes, self.phases = (np.zeros(shape, int) for _ in range(4))
        self.is_fenced = np.zeros(shape, bool)
        self.gathered = np.zeros((*shape, counts), "int32")
        self.released = np.zeros((*shape, KEPT, counts), "int32")

    def chunks_of(self, memory):
        return Chunks(memory, self.machine)

    def initialize(self, memory, index, count):
        """Let the active threads initialize a barrier each."""
        memory.write(np.asarray(index) + np.arange(max(1, 8 // memory.item))[None], 0)
        threads, address = self._addresses(memory, index)
        if (address % 8).any():
            raise EmulationError("an mbarrier is unaligned")
        for of in np.unique(address):
            if self.numbers.setdefault(of, len(self.numbers)) >= MOST:
                raise EmulationError(f"a block has more than {MOST} mbarriers")
        at = self._at(threads, address)
        count = np.broadcast_to(count, (self.machine.threads, 1))[threads, 0]
        if (count < 1).any() or self.count[at].any():
            raise EmulationError("an mbarrier is initialized twice, or for no arrivals")
        self.count[at] = self.pending[at] = count

    def fence(self):
        """Make initialized barriers known to copies."""
        blocks = np.unique(self.machine.block[self.machine.active()])
        self.is_fenced[blocks] = self.count[blocks] > 0

    def find(self, memory, index):
        """Return the active threads, and (block, number) of the barrier of each."""
        threads, address = self._addresses(memory, index)
        if not np.isin(address, list(self.numbers)).all():
            raise EmulationError("no mbarrier has been initialized there")
        memory.check_order(index)
        at = self._at(threads, address)
        if not self.count[at].all():
            raise EmulationError("no mbarrier has been initialized there")
        return threads, at

    def arrive(self, memory, index, count=0):
        """Arrive, and expect so many bytes of copies before."""
        machine = self.machine
        threads, at = self.find(memory, index)
        whole = np.bincount(machine.warp[threads], minlength=len(self.epochs)) == WARP
        self._next_epochs(threads[whole[machine.warp[threads]]])
        np.maximum.at(self.gathered, at, self.clocks[threads])
        np.add.at(self.bytes, at, np.broadcast_to(count, (machine.threads, 1))[threads, 0])
        np.subtract.at(self.pending, at, 1)
        if (self.pending[at] < 0).any():
            raise EmulationError("more arrivals at an mbarrier than it was initialized for")
        if (self.bytes[at] > MOST_BYTES).any():
            raise EmulationError(f"an mbarrier waits for more than {MOST_BYTES} bytes")
        self._end_phases(at)

    def copied(self, block, number, count):
        """Count bytes that a copy brings; gives the phase that they are of."""
        at = np.array([block]), np.array([number])
        if not self.is_fenced[at].all():
            raise EmulationError("a copy completes on an mbarrier without a fence behind its init")
        phase = self.phases[block, number]
        self.bytes[at] -= count
        self._end_phases(at)
        return phase

    def wait(self, memory, index, parity):
        """Wait for the end of a phase of a parity."""
        machine = self.machine
        threads, at = self.find(memory, index)
        parity = np.broadcast_to(parity, (machine.threads, 1))[threads, 0]
        while not (ended := self.phases[at] % 2 != parity).all():
            first = int(np.argmin(ended))
            offset = int(self._addresses(memory, index)[1][first]) - memory.base
            block, number = at[0][first], at[1][first]
            what = (
                f"thread {machine.inner[threads[first]]} for parity {parity[first]} of the mbarrier"
                f" at byte {offset} (phase {self.phases[block, number]}, "
                f"{self.pending[block, number]} arrivals and {self.bytes[block, number]} bytes "
                f"pending)"
            )
            machine.give_way(what)
        machine.progress += 1
        # Other timings may let the wait return after fewer phases: no more than these are sure.
        column = self.first_phase + at[1]
        sure = self.clocks[threads, column]
        sure = sure + (sure % 2 == parity)
        if (self.phases[at] - sure >= KEPT).any():
            raise EmulationError("a wait for an mbarrier is many phases behind")
        known = np.where(sure[:, None] > 0, self.released[(*at, sure % KEPT)], 0)
        self.clocks[threads] = np.maximum(self.clocks[threads], known)
        self.clocks[threads, column] = np.maximum(self.clocks[threads, column], sure)

    def join(self, group):
        """Let the active threads of a warp or block know all that one of them knows."""
        active = self.machine.active()
        self._next_epochs(active)
        starts = np.flatnonzero(np.diff(group[active], prepend=-1))
        top = np.maximum.reduceat(self.clocks[active], starts)
        self.clocks[active] = np.repeat(top, np.diff(starts, append=len(active)), 0)

    def knows_accesses(self, threads, warp, epoch):
        """Whether accesses of a warp in an epoch come before what threads do now."""
        is_same = self.machine.block_of_warp[warp] == self.machine.block[threads]
        return is_same & (self.clocks[threads, warp % self.warps] > epoch)

    def _next_epochs(self, threads):
        """Start a new epoch of warps, all of whose threads are given."""
        if not len(threads):
            return
        for memory in self.machine.memories:
            memory.note_reads()
        warp = self.machine.warp[threads]
        self.epochs[np.unique(warp)] += 1
        self.machine.counts = None
        self.clocks[threads, warp % self.warps] = self.epochs[warp]

    def _end_phases(self, at):
        block, number = np.unique(np.stack(at), axis=1)
        ended = (self.pending[block, number] == 0) & (self.bytes[block, number] == 0)
        at = block[ended], number[ended]
        self.phases[at] += 1
        self.pending[at] = self.count[at]
        self.released[(*at, self.phases[at] % KEPT)] = self.gathered[at]

    def _addresses(self, memory, index):
        threads = self.machine.active()
        index = np.broadcast_to(index, (self.machine.threads, 1))[threads, 0]
        return threads, memory.base + index * memory.item

    def _at(self, threads, address):
        unique, inverse = np.unique(address, return_inverse=True)
        numbers = np.array([self.numbers[of] for of in unique], int)
        return self.machine.block[threads], numbers[inverse.reshape(-1)]
