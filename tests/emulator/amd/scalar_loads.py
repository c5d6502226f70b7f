"""Scalar loads."""

import re

import numpy as np

from .group import Group
from .memory_steps import place
from .registers import NULL, SGPR, registers
from .scalar_operands import put_scalar, scalar_source
from .step import Step, numbers
from .text import Instruction, Unsupported
from .undefined import spoiled

_SCALAR = re.compile(r"s_(buffer_)?load_(?:dword(?:x(\d+))?|b(\d+))$")


def scalar_load_step(inst: Instruction) -> Step | None:
    """Decode a scalar load; None if the instruction is none."""
    found = _SCALAR.match(inst.name)
    if found is None:
        return None
    words = int(found[3]) // 32 if found[3] else int(found[2] or 1)
    held = registers(inst.operands[0])
    if held is None:
        raise Unsupported(inst.text)
    first = held.first - SGPR
    base = scalar_source(re.sub(r":(\d+)\]", lambda m: f":{m[1]}]", inst.operands[1]), "u64")
    offsets = [scalar_source(text, "u32") for text in inst.operands[2:]]
    step = np.uint64(inst.number("offset"))
    reads = numbers(base.registers, *(s.registers for s in offsets))
    is_buffer = found[1] is not None

    def run(g: Group) -> None:
        machine = g.machine
        if not g.unclean.isdisjoint(reads) and np.any(
            spoiled(32, [base.undefined(g), *(s.undefined(g) for s in offsets)])
        ):
            raise g.mistake("its address is made of registers that nothing wrote")
        start = base.value(g)
        if is_buffer:
            start = start & np.uint64(0xFFFFFFFFFFFF)
        address = start + step
        for one in offsets:
            address = address + np.asarray(one.value(g), "u8")
        address = np.broadcast_to(address & ~np.uint64(3), g.ids.shape)
        places, shadows = place(g, address, 4 * words)
        shadow = machine.launch.shadow
        machine.race(shadow.read(shadows, 4 * words, machine.stamps[g.ids]), "memory", False)
        values = machine.launch.regions.bytes.load(places, 4 * words).reshape(len(places), -1)
        for k in range(words):
            put_scalar(g, first + k, values[:, k])
        access = (shadow, shadows, 4 * words, g.ids, "memory", False, False)
        machine.waits.issue(g, "lgkm", tuple(writes), inst.text, access, False)

    writes = frozenset() if first == NULL else frozenset(range(held.first, held.first + words))
    return Step(inst, run, reads, writes)
