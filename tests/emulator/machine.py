"""Threads of several blocks in lockstep, and what orders them: barriers and waits for copies."""

from contextlib import contextmanager

import numpy as np

from .mbarriers import Mbarriers
from .memory import EmulationError
from .wgmma import Products

WARP = 32


class Machine:
    """Blocks ``first`` to ``first + blocks`` of a grid.

    Every statement is run by all threads at once, which is one of the orders that a GPU may take;
    that no other order gives another result is what memory checks.

    Attributes
    ----------
    mask : array or None
        Threads that run; ``None`` for all.
    numbers, block, warp : array
        Of each thread: its number, its block's, its warp's.
    slots : list
        Values of variables and buffers.
    mbarriers, products : Mbarriers, Products
        Of kernels that have such; otherwise ``None``.
    role, progress : object, int
        The role that runs, and a count that a wait for an mbarrier changes as it returns.
    """

    def __init__(self, first, blocks, per_block, slots, cluster=1, has_roles=False):
        self.blocks, self.per_block = blocks, per_block
        self.threads = blocks * per_block
        self.numbers = np.arange(self.threads)
        self.block, self.inner = np.divmod(self.numbers, per_block)
        self.grid_block = self.block + first
        warps = -(-per_block // WARP)
        self.warp = self.block * warps + self.inner // WARP
        self.block_of_warp = np.repeat(np.arange(blocks), warps)
        self.slots, self.mask = slots, None
        self.cluster, self.cluster_of = cluster, self.block // cluster  # the latter of a thread
        self.cluster_barriers = np.ones(-(-blocks // cluster), "int32")
        self.block_barriers, self.warp_barriers = (
            np.zeros(blocks, int),
            np.zeros(blocks * warps, int),
        )
        self.counts = None  # what ``passed`` gives of all threads; none after a barrier
        self.clock = 0  # barriers that all blocks have passed, where they passed as many
        self.memories = []
        self.committed = np.zeros(self.threads, int)
        self.copies = []
        self.role, self.progress, self.shared = None, 0, []
        self.mbarriers = Mbarriers(self) if has_roles else None
        self.products = Products(self) if has_roles else None

    @contextmanager
    def only(self, condition):
        """Let the threads run for which a condition holds; gives whether any does."""
        before = self.mask
        if np.ndim(condition) == 0 and condition:
            yield before is None or before.any()
            return
        condition = np.broadcast_to(np.reshape(condition, (-1,)), (self.threads,))
        mask = condition if before is None else before & condition
        self.mask = None if mask.all() else mask
        try:
            yield mask.any()
        finally:
            self.mask = before

    def active(self):
        return self.numbers if self.mask is None else self.numbers[self.mask]

    def passed(self, threads):
        """How many barriers of their blocks and of their warps threads have passed."""
        if self.counts is None:
            counts = [self.block_barriers[self.block], self.warp_barriers[self.warp]]
            if self.mbarriers is not None:
                counts.append(self.mbarriers.epochs[self.warp])
            self.counts = np.stack(counts)
        return self.counts[:, threads]

    def place(self, memory, alignment):
        """Place shared memory at an address aligned as declared and no better."""
        end = max((m.base + m.size * m.item for m in self.shared), default=0)
        memory.base = (end // alignment + 1 | 1) * alignment
        self.shared.append(memory)

    def shared_at(self, first, end):
        for memory in self.shared:
            if memory.base <= first and end <= memory.base + memory.size * memory.item:
                return memory
        raise EmulationError("an operand does not lie in shared memory")

    def give_way(self, what):
        """Let other roles run, until which nothing will be as this one waits for."""
        if self.role is None:
            raise EmulationError(f"deadlock: {what}")
        self.role.give_way(what)

    def block_barrier(self):
        self.whole(self.block, "block")
        if self.mask is None and self.clock is not None:
            self.clock += 1
            for memory in self.memories:  # no later write can come before these reads
                memory.reads.clear()
        else:
            self._note_reads()
            self.clock = None
        self.block_barriers[np.unique(self.block[self.active()])] += 1
        self.counts = None
        if self.mbarriers is not None:
            self.mbarriers.join(self.block)

    def cluster_barrier(self):
        """A barrier of all blocks of a cluster; other clusters need not come there."""
        self.whole(self.cluster_of, "cluster")
        self.block_barrier()
        passed = np.unique(self.cluster_of[self.active()])
        self.cluster_barriers[passed] += 1
        for memory in self.memories:
            memory.remote_reads = [
                (read[left], clusters[left])
                for read, clusters in memory.remote_reads
                if (left := ~np.isin(clusters, passed)).any()
            ]

    def end(self):
        """Refuse to end blocks whose shared memory others, copies or products may still access."""
        if any(memory.remote_reads for memory in self.memories):
            raise EmulationError("a block may end while others of the cluster read its memory")
        if self.products is not None:
            self.products.end()
            for memory in self.shared:
                memory.chunks.end()

    def warp_barrier(self):
        self.whole(self.warp, "warp")
        self._note_reads()
        self.warp_barriers[np.unique(self.warp[self.active()])] += 1
        self.counts = None
        if self.mbarriers is not None:
            self.mbarriers.join(self.warp)

    def warpgroup_barrier(self):
        """Of whole warpgroups, each with a barrier of its own."""
        group = self.numbers // (4 * WARP)
        self.whole(group, "warpgroup")
        self._note_reads()
        if self.mbarriers is not None:
            self.mbarriers.join(group)

    def _note_reads(self):
        for memory in self.memories:
            memory.note_reads()

    def whole(self, group, what):
        """Refuse what all threads of a warp or block must do, where some do not."""
        if self.mask is None:
            return
        if (np.isin(group, group[self.mask]) & ~self.mask).any():
            raise EmulationError(f"not all threads of a {what} take part")

    def copy(self, memory, place, threads, value):
        memory.copy(place, threads)
        self.copies.append((memory, place, threads, value, self.committed[threads]))

    def commit(self):
        self.committed[self.active()] += 1

    def wait(self, pending):
        """Let groups of copies land, all of a thread's but the last few that it committed."""
        waits = np.full(self.threads, -1)
        active = self.active()
        waits[active] = self.committed[active] - pending
        left = []
        for memory, place, threads, value, group in self.copies:
            lands = group < waits[threads]
            if lands.any():
                memory.landed(place[lands], threads[lands], value[lands])
            if not lands.all():
                keep = ~lands
                left.append((memory, *(x[keep] for x in (place, threads, value, group))))
        self.copies = left
