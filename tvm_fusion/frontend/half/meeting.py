"""Values whose readers meet again: an activation function in parts, such as ``x * sigmoid(x)``.

One kernel computes all of it, so a value in between is in registers, and rounding it to a half type
would cost digits and save no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ..normalize.engine import op_name
from .operator_precision import ELEMENTWISE

_MOST = 16  # operators of an activation function


def meeting_values(func: relax.Function) -> set[int]:
    """Find values that elementwise operators alone read, until one value is left of them.

    Returns
    -------
    set of int
        Hashes of the variables.
    """
    found: set[int] = set()
    for block in func.body.blocks if isinstance(func.body, relax.SeqExpr) else ():
        reads = [set(map(hash, relax.analysis.free_vars(b.value))) for b in block.bindings]
        names = [op_name(b.value) for b in block.bindings]
        made = [hash(b.var) for b in block.bindings]
        readers: dict[int, list[int]] = {}
        for place, read in enumerate(reads):
            for key in read:
                readers.setdefault(key, []).append(place)
        for key in made:
            if len(readers.get(key, ())) > 1 and _meets(key, readers, names, made):
                found.add(key)
    return found


def _meets(
    start: int, readers: dict[int, list[int]], names: Sequence[str | None], made: Sequence[int]
) -> bool:
    """Follow a value through its readers, in the order of the program."""
    waiting = set(readers[start])
    for _ in range(_MOST):
        place = min(waiting)
        if names[place] not in ELEMENTWISE:
            return False
        waiting.remove(place)
        if not waiting:
            return True
        waiting.update(readers.get(made[place], (len(names),)))
        if max(waiting) == len(names):  # one that nobody reads here: it is a result
            return False
    return False
