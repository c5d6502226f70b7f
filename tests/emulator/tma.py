"""Tensor maps and copies of boxes by the Tensor Memory Accelerator."""

from dataclasses import dataclass

import numpy as np

from .memory import CHUNK, EmulationError

ROW = 128  # bytes: the innermost extent of a box
PERIOD = 1024  # bytes, after which the swizzle repeats
SWIZZLE_128B = 3


@dataclass(frozen=True)
class TensorMap:
    """What the host encoded: a view of an array of numbers, and the extents of a box."""

    view: np.ndarray  # innermost dimension last
    box: tuple[int, ...]  # as long: how many elements
    steps: tuple[int, ...] = ()  # as long: from one of them to the next; empty: 1

    @classmethod
    def encoded(cls, array, offset, numbers, attributes):
        """Check what ``cuTensorMapEncodeTiled`` gets: numbers are sizes, strides, box, steps."""
        rank = int(attributes.rank)
        sizes, strides, box, steps = np.split(
            np.array(numbers, int), np.cumsum([rank, rank - 1, rank])
        )
        item = array.itemsize
        if (
            not 1 <= rank <= 5
            or len(steps) != rank
            or str(array.dtype) != attributes.descriptor_dtype
        ):
            raise EmulationError("a tensor map of another rank or type than its array")
        if attributes.interleave or attributes.oob_fill:
            raise EmulationError("a tensor map with interleaving, or NaN as padding")
        if int(attributes.swizzle) != SWIZZLE_128B or box[0] * item != ROW:
            raise EmulationError("a tensor map without rows of 128 bytes that are swizzled")
        if (
            (box < 1).any()
            or (box > 256).any()
            or (steps < 1).any()
            or (steps > 8).any()
            or (sizes < 1).any()
            or (sizes > 2**32).any()
        ):
            raise EmulationError("a tensor map with an extent out of range")
        if offset * item % 16 or (strides % 16).any() or (strides < 1).any():
            raise EmulationError("a tensor map whose address or strides are no multiples of 16")
        if steps[0] != 1:
            raise EmulationError("a tensor map with a step along its rows")
        places = np.array([item, *strides])
        if offset * item + ((sizes - 1) * places).sum() + item > array.nbytes or offset < 0:
            raise EmulationError("a tensor map reaches beyond its array")
        data = array.reshape(-1).view("uint8")  # float8_e5m2 has no array interface
        view = np.ndarray(sizes[::-1], array.dtype, data, offset * item, places[::-1])
        view.flags.writeable = False
        count = -(-box // steps)  # a box spans as many elements as are given
        return cls(view, tuple(map(int, count[::-1])), tuple(map(int, steps[::-1])))

    def read(self, first):
        """Copy the box at coordinates, innermost first, in rows; zeros where there is nothing."""
        first, box = np.array(first[::-1]), np.array(self.box)
        steps = np.array(self.steps or [1] * len(box))
        begin = np.maximum(-(first // steps), 0)  # the first element of the box that exists
        end = np.minimum(-((first - self.view.shape) // steps), box)
        found = np.zeros(self.box, self.view.dtype)
        if (begin < end).all():
            to = tuple(map(slice, begin, end))
            of = (map(int, x) for x in (first + begin * steps, first + end * steps, steps))
            found[to] = self.view[tuple(map(slice, *of))]
        return found.reshape(-1, self.box[-1])


def load(machine, target, at, tensor_map, coordinates, bars):
    """Issue a box's copy for every active thread.

    Parameters
    ----------
    machine : Machine
        The machine.
    target, at : Memory, array
        Where in shared memory the box goes to.
    tensor_map : TensorMap
        What it comes from.
    coordinates : sequence of array
        Of its first element, innermost first.
    bars : (Memory, array)
        The mbarrier that gets the bytes.
    """
    mbarriers = machine.mbarriers
    threads, (blocks, numbers) = mbarriers.find(*bars)
    at, *coordinates = (
        np.broadcast_to(x, (machine.threads, 1))[threads, 0] for x in (at, *coordinates)
    )
    size = int(np.prod(tensor_map.box)) * tensor_map.view.itemsize
    for i, thread in enumerate(threads):
        offset = int(at[i]) * target.item
        if (target.base + offset) % ROW:
            raise EmulationError(f"{target.name}: a box does not begin at a multiple of {ROW}")
        if offset < 0 or offset + size > target.size * target.item:
            raise EmulationError(f"{target.name}: a box does not lie in shared memory")
        if any(offset <= bar - target.base < offset + size for bar in mbarriers.numbers):
            raise EmulationError(f"{target.name}: a box overwrites an mbarrier")
        rows = tensor_map.read([int(c[i]) for c in coordinates]).view("uint8")
        rows = rows.reshape(len(rows), ROW // CHUNK, CHUNK)
        own = (target.base + offset) % PERIOD // ROW + np.arange(len(rows))  # from a period's begin
        order = np.arange(ROW // CHUNK) ^ own[:, None] % 8
        swizzled = np.take_along_axis(rows, order[..., None], 1)
        target.check_copy(blocks[i], offset, size, thread)
        phase = mbarriers.copied(blocks[i], numbers[i], size)
        target.copied(blocks[i], offset, swizzled.reshape(-1), numbers[i], phase)
