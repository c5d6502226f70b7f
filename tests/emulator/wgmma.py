"""Products of warpgroups (wgmma): operands in shared memory, accumulators in registers."""

import numpy as np

from .memory import CHUNK, EmulationError, Registers
from .scalar_types import multiplied

THREADS, WARPS, WARP = 128, 4, 32  # of a warpgroup, and of a warp
M, K = 64, 16  # of a product; K of half types
K_BYTES = 32
ROW = 128  # bytes of swizzled shared memory
SWIZZLE_128B = 1


class Accumulators(Registers):
    """Registers that products add to: not to be touched before the products were waited for.

    Attributes
    ----------
    pending : dict
        For the first register of a tile: its values ``[warpgroup, 64, n]`` while products are
        pending, and for each warp ``[warpgroup, 4]`` the number of the last group with one, or -1.
    touched : array
        How many fences each warpgroup had passed when its threads touched them last.
    """

    def __init__(self, name, size, dtype, machine):
        super().__init__(name, size, dtype, machine)
        self.pending, self.touched = {}, np.zeros(machine.threads // THREADS, int)
        machine.products.accumulators.append(self)

    def read(self, index):
        self._touch(index)
        return super().read(index)

    def write(self, index, value):
        self._touch(index)
        super().write(index, value)

    def _touch(self, index):
        products = self.machine.products
        groups = products.active()
        self.touched[groups] = products.fences[groups]
        if isinstance(index, slice):
            first, end = index.start, index.stop
        else:
            first, end = np.min(index), np.max(index) + 1
        for begin, (values, last) in self.pending.items():
            is_apart = end <= begin or begin + values.shape[2] // 2 <= first
            if not is_apart and (last.reshape(-1)[products.active_warps()] >= 0).any():
                raise EmulationError(f"{self.name}: accumulators of products not waited for")

    def tile(self, begin, n):
        """Return the values of a tile, and the last groups whose products are pending."""
        if begin + n // 2 > self.data.shape[1]:
            raise EmulationError(f"{self.name}: no accumulators of {n} columns")
        before = self.pending.get(begin)
        if before is None or before[0].shape[2] != n:
            if before is not None and (before[1] >= 0).any():
                raise EmulationError(f"{self.name}: products of other columns are pending")
            groups = self.machine.threads // THREADS
            zeros = np.zeros((groups, M, n), self.data.dtype)
            self.pending[begin] = zeros, np.full((groups, WARPS), -1)
        return self.pending[begin]

    def fetch(self, begin, values, groups):
        """Take what the registers of warpgroups hold."""
        n = values.shape[2]
        held = self.data[:, begin : begin + n // 2].reshape(-1, 4, 8, 4, n // 8, 2, 2)[groups]
        values[groups] = held.transpose(0, 1, 5, 2, 4, 3, 6).reshape(-1, M, n)

    def write_back(self, done):
        """Write what products gave of groups that are done: that number of each warp."""
        for begin, (values, last) in self.pending.items():
            group, warp = np.nonzero((last >= 0) & (last < done))
            n = values.shape[2]
            rows = values.reshape(-1, WARPS, 2, 8, n // 8, 4, 2)[group, warp]
            threads = ((group * WARPS + warp) * WARP)[:, None] + np.arange(WARP)
            tiles = rows.transpose(0, 2, 4, 3, 1, 5).reshape(-1, n // 2)
            self.data[threads.reshape(-1), begin : begin + n // 2] = tiles
            last[group, warp] = -1


class Products:
    """Groups of products of each warpgroup: committed; done, as each warp knows ``[.., 4]``."""

    def __init__(self, machine):
        self.machine, self.accumulators = machine, []
        self.fragments = []  # registers that pending products read, and what they held then
        groups = machine.threads // THREADS
        self.committed, self.fences = np.zeros(groups, int), np.zeros(groups, int)
        self.done = np.zeros((groups, WARPS), int)

    def active(self):
        return np.unique(self.machine.active() // THREADS)

    def active_warps(self):
        return np.unique(self.machine.active() // WARP)

    def whole(self):
        """Return the active warpgroups; all of their threads must be active."""
        if self.machine.per_block % THREADS:
            raise EmulationError("threads are no warpgroups")
        self.machine.whole(self.machine.numbers // THREADS, "warpgroup")
        return self.active()

    def fence(self):
        self.fences[self.whole()] += 1

    def commit(self):
        self.committed[self.whole()] += 1

    def wait(self, number):
        """Let whole warpgroups wait until at most so many groups are pending."""
        self.whole()
        warps, done = self.active_warps(), self.done.reshape(-1)
        done[warps] = np.maximum(done[warps], self.committed[warps // WARPS] - number)
        for registers in self.accumulators:
            registers.write_back(self.done)
        self._check_fragments()
        machine, mbarriers = self.machine, self.machine.mbarriers
        threads = machine.active()
        column = mbarriers.first_product + machine.warp[threads] % mbarriers.warps
        mbarriers.clocks[threads, column] = done[threads // WARP]

    def multiply(self, acc, begin, n, operands, is_added):
        """Issue a product.

        Parameters
        ----------
        acc, begin : Accumulators, int
            The first register.
        n : int
            Columns.
        operands : sequence of (array, bool, dtype)
            Descriptors of A and B, and whether each lies with K contiguous.
        is_added : array
            Whether the product is added to the accumulators.
        """
        groups = self.whole()
        a, b = (
            self._operand(groups, self._uniform(descriptor, groups), rows, is_k, dtype)
            for (descriptor, is_k, dtype), rows in zip(operands, (M, n), strict=True)
        )
        self._add(acc, begin, groups, a, b, is_added)

    def multiply_fragments(self, acc, begin, n, fragments, b, is_added):
        """Issue a product with A in registers: (Registers, slice) of 16 of K; b as operands are."""
        groups, (held, words) = self.whole(), fragments
        values = held.read(words)
        for group in groups:
            own = slice(group * THREADS, (group + 1) * THREADS)
            self.fragments.append((held, own, words, values[own].copy(), self.committed[group]))
        a = rows_of_fragments(values)[groups]
        descriptor, is_k, dtype = b
        right = self._operand(groups, self._uniform(descriptor, groups), n, is_k, dtype)
        self._add(acc, begin, groups, a, right, is_added)

    def _check_fragments(self):
        """Refuse fragments that changed before the products that read them were waited for."""
        left = []
        for one in self.fragments:
            held, own, words, values, number = one
            if number >= self.done[own.start // THREADS].min():
                left.append(one)
            elif held.data[own, words].tobytes() != values.tobytes():  # NaN is the same NaN
                raise EmulationError(f"{held.name}: written while products may still read it")
        self.fragments = left

    def _add(self, acc, begin, groups, a, b, is_added):
        """Add a product of ``[warpgroup, 64, K]`` and ``[warpgroup, n, K]``."""
        if (self.fences[groups] <= acc.touched[groups]).any():
            raise EmulationError(f"{acc.name}: no wgmma.fence between a register and a product")
        n = b.shape[1]
        product = (a @ b.transpose(0, 2, 1)).astype(acc.data.dtype)  # integers wrap around
        values, last = acc.tile(begin, n)
        acc.fetch(begin, values, groups[(last[groups] < 0).all(1)])
        added = self._uniform(is_added, groups).astype(bool)[:, None, None]
        values[groups] = np.where(added, values[groups], 0) + product
        last[groups] = self.committed[groups, None]

    def end(self):
        """Refuse to end before products."""
        if (self.committed[:, None] > self.done).any() or any(
            (last >= 0).any() for a in self.accumulators for _, last in a.pending.values()
        ):
            raise EmulationError("a block ends while products are pending")

    def _uniform(self, value, groups):
        """Return the value that is uniform in each warpgroup."""
        value = np.broadcast_to(value, (self.machine.threads, 1)).reshape(-1, THREADS)[groups]
        if (value != value[:, :1]).any():
            raise EmulationError("threads of a warpgroup differ in an operand of a product")
        return value[:, 0]

    def _operand(self, groups, descriptor, rows, is_k_contiguous, dtype):
        """Read ``[warpgroup, row, K]`` of shared memory, and note that it may be read for long."""
        start, leading, stride = (
            ((descriptor >> np.uint64(s)).astype(int) & 0x3FFF) * CHUNK for s in (0, 16, 32)
        )
        if (descriptor >> np.uint64(62) != SWIZZLE_128B).any():
            raise EmulationError("an operand that is not swizzled in 128 bytes")
        if (descriptor >> np.uint64(49) & np.uint64(7)).any() or (start & 0x380).any():
            raise EmulationError("an operand that begins inside of eight rows")
        start, leading, stride = (x[:, None, None] for x in (start, leading, stride))
        if is_k_contiguous:
            row, chunk = np.arange(rows)[:, None], np.arange(K_BYTES // CHUNK)
            place = start + row // 8 * stride + row % 8 * ROW + chunk * CHUNK
        elif dtype.itemsize != 2:
            raise EmulationError(f"{dtype}: only half types may be other than contiguous along K")
        else:
            k, chunk = np.arange(K)[:, None], np.arange(rows // 8)
            place = start + chunk // 8 * leading + k // 8 * stride + k % 8 * ROW + chunk % 8 * CHUNK
        place ^= (place >> 7 & 7) * CHUNK
        found = self._read(groups, place // CHUNK, dtype)
        found = found.reshape(*place.shape[:2], -1)
        return found if is_k_contiguous else found.transpose(0, 2, 1)

    def _read(self, groups, chunks, dtype):
        machine = self.machine
        memory = machine.shared_at(int(chunks.min()) * CHUNK, int(chunks.max() + 1) * CHUNK)
        block = groups * THREADS // machine.per_block
        chunks = chunks - memory.base // CHUNK + block[:, None, None] * memory.chunks.per_block
        known = machine.mbarriers.clocks.reshape(-1, THREADS, machine.mbarriers.clocks.shape[1])
        rows = np.broadcast_to(np.arange(len(groups))[:, None, None], chunks.shape)
        memory.chunks.check_read(chunks, rows, known[groups].min(1))
        by_threads = memory.chunks.bar[chunks] < 0
        if by_threads.any():
            first = groups[rows[by_threads]] * THREADS
            for warp in range(0, THREADS, WARP):
                memory.check_product(chunks[by_threads], first + warp)
        own = groups % (machine.per_block // THREADS)
        memory.chunks.product[chunks, own[:, None, None]] = self.committed[groups][:, None, None]
        data = memory.viewed(dtype).data.reshape(-1, CHUNK // dtype.itemsize)
        return multiplied(data[chunks])


def rows_of_fragments(words):
    """Return A as ``[warpgroup, 64, 16]``; threads hold row group or that + 8, pairs of k."""
    parts = words.astype("float32").reshape(-1, 4, 8, 4, 2, 2, 2)
    return parts.transpose(0, 1, 4, 2, 5, 3, 6).reshape(-1, 64, 16)
