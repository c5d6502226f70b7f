"""Memory operations under way: which registers and memory they still need, until a wait.

Waves count the operations that they issue and that are done, in two or three counters: ``vm`` for
vector memory, ``lgkm`` for LDS and scalar loads, and on RDNA ``vs`` for vector stores. Operations
of a counter finish in order, but for scalar loads, which only a wait for all of them is sure of.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from .group import Group
from .registers import AGPR, SGPR
from .step import Step
from .text import Instruction, Unsupported

COUNTERS = ("vm", "lgkm", "vs")


@dataclass(eq=False)
class Operation:
    """A memory operation of some waves.

    Attributes
    ----------
    counter
        Which one it counts in.
    order : array of int
        For each wave its number in that counter; 0 if it is not the wave's.
    registers
        What it writes.
    ordered
        Whether it ends after those before it.
    accesses
        Shadow, offsets, size, waves, whether it writes, whether it is atomic.
    text
        The instruction.
    """

    counter: str
    order: np.ndarray
    registers: tuple[int, ...]
    ordered: bool
    accesses: list[tuple[Any, ...]]
    text: str


class Waits:
    """Counters of all waves of a machine."""

    def __init__(self, waves: int):
        self._issued = {name: np.zeros(waves, "i8") for name in COUNTERS}
        self._done = {name: np.zeros(waves, "i8") for name in COUNTERS}
        self._unordered = {name: np.zeros(waves, "i8") for name in COUNTERS}
        self._operations: list[Operation] = []
        #: Operations by the registers that they write.
        self.pending: dict[int, list[Operation]] = {}

    def issue(
        self,
        g: Group,
        counter: str,
        registers: tuple[int, ...],
        text: str,
        access: tuple[Any, ...] | None = None,
        ordered: bool = True,
    ) -> None:
        """Note an operation."""
        issued = self._issued[counter]
        issued[g.ids] += 1
        order = np.zeros(len(issued), "i8")
        order[g.ids] = issued[g.ids]
        if not ordered:
            self._unordered[counter][g.ids] = issued[g.ids]
        one = Operation(counter, order, registers, ordered, [access] if access else [], text)
        self._operations.append(one)
        for register in registers:
            self.pending.setdefault(register, []).append(one)

    def attach(self, access: tuple[Any, ...]) -> None:
        """Note another access of the operation that was issued last."""
        self._operations[-1].accesses.append(access)

    def wait(self, g: Group, counter: str, left: int) -> None:
        """Wait until no more than so many operations are under way."""
        done, ids = self._done[counter], g.ids
        reached = self._issued[counter][ids] - left
        if left:
            unsure = self._unordered[counter][ids] > done[ids]
            reached = np.where(unsure, done[ids], reached)
        done[ids] = np.maximum(done[ids], reached)
        kept = []
        for one in self._operations:
            if one.counter != counter or (one.order > done).any():
                kept.append(one)
                continue
            for register in one.registers:
                others = self.pending[register]
                others.remove(one)
                if not others:
                    del self.pending[register]
        self._operations = kept

    def late(self, one: Operation) -> np.ndarray:
        """Return for each wave whether an operation of its is under way."""
        return one.order > self._done[one.counter]

    def under_way(self) -> list[Operation]:
        """Return operations that some wave has not waited for."""
        return self._operations

    def check(self, g: Group, step: Step, counter: str | None) -> None:
        """Fail if an instruction needs registers that an operation is still to write.

        An operation may write what an earlier one of its counter writes, for they end in order.
        """
        for register in step.touched & self.pending.keys():
            for one in self.pending[register]:
                if not self.late(one)[g.ids].any():
                    continue
                if counter == one.counter and one.ordered and register not in step.reads:
                    continue
                verb = "reads" if register in step.reads else "writes"
                raise g.mistake(f"it {verb} {name(register)} before the wait for {one.text!r}")


def name(register: int) -> str:
    """Return a register's name."""
    if register >= SGPR:
        return f"s{register - SGPR}"
    return f"a{register - AGPR}" if register >= AGPR else f"v{register}"


def counts(inst: Instruction) -> dict[str, int]:
    """Read what a wait instruction waits for."""
    if inst.name == "s_waitcnt":
        text = inst.operands[0]
        found = {n: int(v, 0) for n, v in re.findall(r"(\w+)\((\w+)\)", text)}
        if not found:
            if int(text, 0) != 0:
                raise Unsupported(f"{inst.text!r}: counters without names")
            found = {"vmcnt": 0, "lgkmcnt": 0}
        return {n.removesuffix("cnt"): v for n, v in found.items() if n != "expcnt"}
    kind = inst.name.removeprefix("s_waitcnt_").removesuffix("cnt")
    if kind == "exp":
        return {}
    if kind not in COUNTERS or inst.operands[0] != "null":
        raise Unsupported(f"{inst.text!r}")
    return {kind: int(inst.operands[1], 0)}
