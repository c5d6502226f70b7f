"""A thread's position in a ring of stages with mbarriers, kept in registers.

    start():     stage = parity = 0
    advance(1):  before = stage;  stage += 1;  at the end of the ring:  stage = 0, parity ^= 1

Computed from the number of a step, quotients by the number of stages would take longer than the
products of a small tile.
"""

from __future__ import annotations

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import index, local, sequence, when

_STAGE, _PARITY, _BEFORE = range(3)


class RingPosition:
    """A position in a ring.

    Parameters
    ----------
    stages : int
        Of the ring.

    Attributes
    ----------
    stage : Expr
        The stage.
    parity : Expr
        Of the phase in which the stage is used.
    before : Expr
        The stage that was left last, by a step of one.
    buffer : Var
        Registers.
    """

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self.buffer = local("ring", [3], "int32")
        self.stage, self.parity, self.before = (load(self.buffer, [index(i)]) for i in range(3))

    def start(self) -> list[tirx.Stmt]:
        """Begin at the first stage."""
        return [self._set(name, tirx.const(0, "int32")) for name in (_STAGE, _PARITY, _BEFORE)]

    def advance(self, count: int) -> list[tirx.Stmt]:
        """Go on by some stages."""
        rounds, steps = divmod(count, self._stages)
        other = self._set(_PARITY, 1 - self.parity)
        stmts = [self._set(_BEFORE, self.stage)] if count == 1 else []
        stmts += [other] if rounds % 2 else []
        if not steps:
            return stmts
        again = sequence([self._set(_STAGE, self.stage - self._stages), other])
        on = self._set(_STAGE, self.stage + steps)
        return [*stmts, on, when(self.stage >= self._stages, again)]

    def _set(self, name: int, value: ir.Expr) -> tirx.Stmt:
        return tirx.BufferStore(self.buffer, value, [name])
