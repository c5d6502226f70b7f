"""Bank conflicts of LDS: 32 banks of 4 bytes, one access each a clock.

The lanes of an access go in turns, each as many as 128 bytes hold, in their order. A turn takes as
many clocks as the busiest bank has different words.
"""

import numpy as np

from .group import Group

BANKS = 32


def clocks(at: np.ndarray, size: int) -> tuple[int, int]:
    """Return clocks of an access and those without conflicts.

    Parameters
    ----------
    at : array of int
        Byte addresses of a wave's active lanes.
    size
        Bytes of a lane.
    """
    words = max(size // 4, 1)
    turn = BANKS // words
    total = 0
    for start in range(0, len(at), turn):
        touched = np.unique((at[start : start + turn, None] // 4 + np.arange(words)).ravel())
        total += int(np.bincount(touched % BANKS).max())
    return total, -(-len(at) // turn)


def conflict_clocks(g: Group, at: np.ndarray, size: int) -> None:
    """Count the clocks of an access of a group, of its first wave for all."""
    machine = g.machine
    count = int(g.exec[0].sum()) if not g.full else g.lanes
    if not count:
        return
    found = machine.launch.clocks.setdefault(machine.step.inst.address, [0, 0, 0])
    total, ideal = clocks(at[:count], size)
    found[0] += total * len(g.ids)
    found[1] += ideal * len(g.ids)
    found[2] += len(g.ids)
