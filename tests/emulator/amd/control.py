"""Branches, calls, waits, barriers and the end of a wave."""

from typing import Any

import numpy as np

from .group import Group
from .machine import BARRIER, END
from .registers import EXEC, SCC, SGPR, VCC
from .scalar_operands import scalar_source, scalar_target
from .step import Step, numbers
from .text import Instruction, Unsupported
from .waits import counts

_CONDITIONS = {
    "s_branch": lambda g: np.ones(len(g.ids), bool),
    "s_cbranch_scc0": lambda g: ~g.scc,
    "s_cbranch_scc1": lambda g: g.scc,
    "s_cbranch_vccz": lambda g: g.pair(SGPR + VCC) == 0,
    "s_cbranch_vccnz": lambda g: g.pair(SGPR + VCC) != 0,
    "s_cbranch_execz": lambda g: ~g.exec.any(1),
    "s_cbranch_execnz": lambda g: g.exec.any(1),
}


def control_step(inst: Instruction, place: dict[int | str, int], base: int) -> Step | None:
    """Decode an instruction that changes what runs next; None if it is none.

    Parameters
    ----------
    place
        Numbers of instructions by address and by label.
    base
        Where address 0 of the text lies in memory.
    """
    name = inst.name
    if name in ("s_endpgm", "s_endpgm_saved"):
        return Step(inst, lambda g: END)
    if name == "s_barrier":
        return Step(inst, lambda g: BARRIER)
    if name in _CONDITIONS:
        return _branch(inst, place)
    if name.startswith("s_waitcnt") and name != "s_waitcnt_depctr":
        return _wait(inst)
    if name == "s_getpc_b64":
        target = scalar_target(inst.operands[0], "u64")
        value = np.uint64(base + inst.address + 4)
        return Step(inst, lambda g: target.write(g, value), writes=numbers(target.registers))
    if name in ("s_setpc_b64", "s_swappc_b64"):
        return _jump(inst, base)
    return None


def _branch(inst: Instruction, place: dict[int | str, int]) -> Step:
    condition = _CONDITIONS[inst.name]
    where = inst.operands[0]
    if where in place:
        to = place[where]
    else:
        try:
            distance = int(where, 0)
        except ValueError:
            raise Unsupported(f"{inst.text!r}: no such label") from None
        distance -= 0x10000 if distance & 0x8000 else 0
        at = inst.address + 4 + 4 * distance
        if at not in place:
            raise Unsupported(f"{inst.text!r}: a branch to {at:#x}, where no instruction begins")
        to = place[at]
    reads: set[int] = set()
    if "scc" in inst.name:
        reads = {SGPR + SCC}
    elif "vcc" in inst.name:
        reads = {SGPR + VCC, SGPR + VCC + 1}
    elif "exec" in inst.name:
        reads = {SGPR + EXEC}

    def run(g: Group) -> Any:
        if not g.unclean.isdisjoint(reads):
            masks = [
                n for n in reads & g.unclean
                if n == SGPR + SCC or g.undefined_bits(n).any()
            ]  # fmt: skip
            if masks and not (g.lanes == 32 and masks == [SGPR + VCC + 1]):
                raise g.mistake("it branches on registers that nothing wrote")
        return condition(g), to

    return Step(inst, run, frozenset(reads), goes_to=to)


def _wait(inst: Instruction) -> Step:
    waited = counts(inst)

    def run(g: Group) -> None:
        for counter, left in waited.items():
            g.machine.waits.wait(g, counter, left)

    return Step(inst, run)


def _jump(inst: Instruction, base: int) -> Step:
    text = inst.operands[-1]
    given = scalar_source(text, "u64")
    link = scalar_target(inst.operands[0], "u64") if inst.name == "s_swappc_b64" else None
    after = np.uint64(base + inst.address + 4)

    def run(g: Group) -> Any:
        if not g.unclean.isdisjoint(given.registers):
            raise g.mistake("it jumps to an address in registers that nothing wrote")
        to = np.unique(given.value(g))
        if len(to) > 1:
            raise g.mistake("waves jump to different addresses")
        address = int(to[0]) - base
        if address not in g.machine.launch.addresses:
            raise g.mistake(f"it jumps to {address:#x}, where no instruction begins")
        if link is not None:
            link.write(g, after)
        return np.ones(len(g.ids), bool), g.machine.launch.addresses[address]

    writes = numbers(link.registers) if link else frozenset()
    return Step(inst, run, numbers(given.registers), writes)
