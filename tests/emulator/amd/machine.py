"""Running a kernel: groups of waves, where they part and meet, barriers, ends.

The group that is furthest behind runs on, until it meets another or has to wait, so that waves
that part at a branch are together again behind it. All waves of a batch of blocks are one group
where they can be.
"""

from collections.abc import Sequence

import numpy as np

from .group import Group
from .memory import Bytes, Regions
from .races import Shadow, stamp, who
from .registers import AGPR, SGPR
from .step import Step
from .waits import Waits


class Mistake(Exception):
    """A kernel does what a device would answer with wrong numbers, or a fault."""


BARRIER, END = object(), object()
#: Instructions of a wave: more is an endless loop.
LONGEST = 20_000_000


class Launch:
    """What all blocks of a launch share.

    Parameters
    ----------
    kernel
        Its name.
    steps
        The code.
    addresses
        From addresses to numbers of steps.
    regions
        Device memory.
    lanes
        Of a wave.
    granules
        The smallest access to ``global`` memory and to ``lds``, in bytes.
    """

    def __init__(
        self, kernel: str, steps: Sequence[Step], addresses: dict[int, int], regions: Regions,
        lanes: int, granules: dict[str, int], reverse: bool = False,
    ):  # fmt: skip
        self.kernel, self.steps, self.addresses = kernel, steps, addresses
        self.regions, self.lanes, self.granules, self.reverse = regions, lanes, granules, reverse
        self.shadow = Shadow(int(regions.shadows[-1]), granules["global"])
        #: Waves that ran each instruction.
        self.counts = np.zeros(len(steps), "i8")
        #: By address of an LDS instruction: its clocks, those without conflicts, how often it ran.
        self.clocks: dict[int, list[int]] | None = None
        self.waves = 0
        numbers = [n for step in steps for n in step.touched if n < SGPR]
        vectors = [n for n in numbers if n < AGPR]
        self.vectors = max(vectors, default=0) + 1
        self.accumulators = max([n - AGPR + 1 for n in numbers if n >= AGPR], default=0)


class Machine:
    """Some blocks of a launch, run together.

    Parameters
    ----------
    launch
        What they belong to.
    blocks : array of int
        Their numbers in the grid.
    waves
        Of a block.
    lds, scratch
        Bytes of a block, of a lane.
    """

    def __init__(self, launch: Launch, blocks: np.ndarray, waves: int, lds: int, scratch: int):
        count = len(blocks) * waves
        self.launch = launch
        launch.waves += count
        #: Of each wave: which of the blocks here, which in the grid, its number in the block.
        self.slot = np.repeat(np.arange(len(blocks)), waves)
        self.block = np.repeat(blocks, waves)
        self.wave = np.tile(np.arange(waves), len(blocks))
        self._epoch = np.zeros(count, "i8")
        self._stamp()
        self.lds_size, self.scratch_size = lds, scratch
        self.lds = Bytes.filled(lds * len(blocks), 0xFF)
        self.lds_undefined = Bytes.filled(lds * len(blocks), 0xFF)
        self.lds_shadow = Shadow(lds * len(blocks) + 16, launch.granules["lds"])
        room = scratch * count * launch.lanes
        self.scratch, self.scratch_undefined = Bytes.filled(room, 0xFF), Bytes.filled(room, 0xFF)
        self.waits = Waits(count)
        self.step: Step | None = None
        ids = np.arange(count)
        self.group = Group(
            ids[::-1].copy() if launch.reverse else ids, launch.lanes,
            launch.vectors, launch.accumulators,
        )  # fmt: skip
        self.group.machine = self

    def _stamp(self) -> None:
        self.stamps = stamp(self.block.astype("i8"), self._epoch, self.wave.astype("i8"))

    def mistake(self, text: str) -> Mistake:
        """Make an error that names the kernel and the instruction."""
        step = self.step
        where = f" at {step.inst.address:#x}: {step.inst.text!r}" if step else ""
        return Mistake(f"{self.launch.kernel}{where}: {text}")

    def race(self, found: np.ndarray, space: str, writing: bool) -> None:
        """Fail if stamps of other accesses were found."""
        bad = found[found != 0]
        if bad.size:
            verb = "writes" if writing else "reads"
            raise self.mistake(
                f"it {verb} {space} that {who(int(bad[0]))} accesses with no barrier between"
            )

    def run(self, entry: int) -> None:
        """Run all waves to their ends."""
        self.group.pc = entry
        groups = [self.group]
        while groups:
            runnable = [g for g in groups if not g.waiting]
            if not runnable:
                groups = self._pass_barrier(groups)
                continue
            runnable.sort(key=lambda g: g.pc)
            g = runnable[0]
            same = [other for other in runnable if other.pc == g.pc]
            if len(same) > 1:
                groups = [other for other in groups if other not in same]
                groups.append(Group.join(same))
                continue
            limit = runnable[1].pc if len(runnable) > 1 else len(self.launch.steps)
            groups += self._run(g, limit)
            groups = [other for other in groups if not other.ended]

    def _run(self, g: Group, limit: int) -> list[Group]:
        """Run a group up to an instruction, a branch that splits it, a barrier or its end."""
        steps, counts, pending = self.launch.steps, self.launch.counts, self.waits.pending
        pc, waves, ran = g.pc, len(g.ids), 0
        while pc < limit:
            step = steps[pc]
            self.step = step
            if pending and not step.touched.isdisjoint(pending):
                self.waits.check(g, step, getattr(step.run, "counter", None))
            counts[pc] += waves
            ran += 1
            pc += 1
            outcome = step.run(g)
            if outcome is None:
                continue
            if outcome is END:
                g.ended = True
                break
            if outcome is BARRIER:
                g.waiting = True
                break
            taken, to = outcome
            if taken.all():
                pc = to
            elif taken.any():
                other = g.take(np.flatnonzero(taken))
                other.pc = to
                rest = g.take(np.flatnonzero(~taken))
                rest.pc = pc
                g.ended = True
                return [other, rest]
            if ran > LONGEST:
                raise self.mistake(f"a wave ran {LONGEST} instructions: an endless loop")
        else:
            if pc >= len(steps):
                raise self.mistake("it is the last instruction, and does not end the wave")
        g.pc = pc
        return []

    def _pass_barrier(self, groups: list[Group]) -> list[Group]:
        self._epoch[np.concatenate([g.ids for g in groups])] += 1
        self._stamp()
        for one in self.waits.under_way():
            for shadow, at, size, waves, space, writing, atomic in one.accesses:
                late = self.waits.late(one)[waves]
                if not late.any():
                    continue
                rest, stamps = at[late], self.stamps[waves[late]]
                if writing:
                    found = shadow.write(rest, size, stamps, np.ones(len(rest), bool), atomic)
                else:
                    found = shadow.read(rest, size, stamps)
                self.race(found, space, writing)
        for g in groups:
            g.waiting = False
        return groups


def active(g: Group, values: np.ndarray) -> np.ndarray:
    """Return the values of the active lanes, as one axis."""
    values = np.broadcast_to(values, g.exec.shape + values.shape[2:])
    return values.reshape(-1, *values.shape[2:]) if g.full else values[g.exec]


def waves_of(g: Group) -> np.ndarray:
    """Return the wave of each active lane."""
    return active(g, g.ids[:, None])


def spread(g: Group, values: np.ndarray) -> np.ndarray:
    """Lay values of active lanes out over all; the others are 0."""
    shape = g.exec.shape + values.shape[1:]
    if g.full:
        return values.reshape(shape)
    whole = np.zeros(shape, values.dtype)
    whole[g.exec] = values
    return whole


def lds_place(g: Group, at: np.ndarray, size: int) -> np.ndarray:
    """Return offsets in the LDS of all blocks of the active lanes' addresses."""
    machine = g.machine
    at = at.astype("i8")
    outside = at + size > machine.lds_size
    if outside.any():
        raise g.mistake(
            f"it accesses {size} bytes of LDS at {int(at[outside][0])}, of which there are "
            f"{machine.lds_size}"
        )
    return machine.slot[waves_of(g)] * machine.lds_size + at
