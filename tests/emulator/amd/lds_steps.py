"""LDS: loads, stores and atomic operations, and permutations of lanes that go through it."""

import re
from typing import Any

import numpy as np

from .atomics import OPERATIONS, combine
from .banks import conflict_clocks
from .group import Group
from .machine import active, lds_place, waves_of
from .memory_steps import WIDTHS, agree, data_of, deliver, destination
from .operands import put, source
from .step import Processor, Step, numbers
from .text import Instruction, Unsupported

# One item or two, whose offsets count in items, or in 64 of them.
_ACCESS = re.compile(
    r"ds_(read|load|write|store)_?(2|2addr)?(st64|_stride64)?_(b8|u8|i8|b16|u16|i16|b32|b64|b96|b128)"
    r"(_d16)?(_hi|_d16_hi)?$"
)


def lds_step(inst: Instruction, processor: Processor) -> Step | None:
    """Decode an instruction of LDS; None if it is none."""
    if not inst.name.startswith("ds_"):
        return None
    if inst.name in ("ds_bpermute_b32", "ds_permute_b32", "ds_swizzle_b32"):
        return _permute(inst)
    if inst.name == "ds_nop":
        return Step(inst, lambda g: None)
    if "gds" in inst.modifiers:
        raise Unsupported(inst.text)
    found = _ACCESS.match(inst.name)
    if not found:
        return _atomic(inst)
    action, two, wide, width, d16, high = found.groups()
    size, signed, half = WIDTHS[width]
    if d16 or high:
        half = int(bool(high and high.endswith("hi")))
    offsets = [inst.number("offset")]
    if two:
        unit = size * (64 if wide else 1)
        offsets = [inst.number("offset0") * unit, inst.number("offset1") * unit]
    if action in ("read", "load"):
        return _load(inst, size, signed, half, offsets)
    return _store(inst, size, half, offsets)


def granule(inst: Instruction) -> int | None:
    """Return the smallest granule of an access to LDS, None if it is none."""
    found = _ACCESS.match(inst.name)
    if found:
        return min(WIDTHS[found[4]][0], 4)
    return 4 if inst.name.startswith("ds_") or "_lds_" in inst.name else None


def _places(g: Group, address: Any, offset: int, size: int) -> np.ndarray:
    if not g.unclean.isdisjoint(address.registers) and active(g, address.undefined(g)).any():
        raise g.mistake("its address is made of registers that nothing wrote")
    at = (active(g, address.value(g)) + np.uint32(offset)).astype("i8")  # wraps around
    if g.machine.launch.clocks is not None:
        conflict_clocks(g, at, size)
    return lds_place(g, at, size)


def _bare(inst: Instruction) -> Instruction:
    return Instruction(inst.name, "", inst.operands, {}, inst.text, inst.address)


def _load(inst: Instruction, size: int, signed: bool, half: int | None, offsets: list[int]) -> Step:
    held = destination(inst.operands[0], size * len(offsets))
    address = source(inst.operands[1], "u32", 0, _bare(inst))
    words = max(size // 4, 1)
    parts = [type(held)(held.first + k * words, words, held.half) for k in range(len(offsets))]

    def run(g: Group) -> None:
        machine = g.machine
        waves = waves_of(g)
        shadow = machine.lds_shadow
        loaded = []
        for offset in offsets:
            at = _places(g, address, offset, size)
            access = None
            if len(at):
                machine.race(shadow.read(at, size, machine.stamps[waves]), "LDS", False)
                access = (shadow, at, size, waves, "LDS", False, False)
            loaded.append(
                (machine.lds.load(at, size), machine.lds_undefined.load(at, size), access)
            )
        for part, (values, undefined, _) in zip(parts, loaded, strict=True):
            bad = undefined if undefined.any() else None
            deliver(g, part, values, bad, size, signed, half)
        for k, (_, _, access) in enumerate(loaded):
            if k == 0:
                machine.waits.issue(g, "lgkm", tuple(held.numbers), inst.text, access)
            elif access is not None:
                machine.waits.attach(access)

    run.counter = "lgkm"
    return Step(inst, run, numbers(address.registers), numbers(held.numbers))


def _store(inst: Instruction, size: int, half: int | None, offsets: list[int]) -> Step:
    address = source(inst.operands[0], "u32", 0, _bare(inst))
    datas = [data_of(inst, text, size, half) for text in inst.operands[1 : 1 + len(offsets)]]
    if len(datas) != len(offsets):
        raise Unsupported(inst.text)

    def run(g: Group) -> None:
        machine = g.machine
        waves = waves_of(g)
        shadow = machine.lds_shadow
        for k, (offset, data) in enumerate(zip(offsets, datas, strict=True)):
            at = _places(g, address, offset, size)
            values, undefined = data(g)
            access = None
            if len(at):
                changed = machine.lds.load(at, size) != values
                changed = changed.any(-1) if changed.ndim > 1 else changed
                found = shadow.write(at, size, machine.stamps[waves], changed, False)
                machine.race(found, "LDS", True)
                machine.lds.store(at, size, values)
                agree(g, machine.lds, at, size, values)
                machine.lds_undefined.store(at, size, 0 if undefined is None else undefined)
                access = (shadow, at, size, waves, "LDS", True, False)
            if k == 0:
                machine.waits.issue(g, "lgkm", (), inst.text, access)
            elif access is not None:
                machine.waits.attach(access)

    run.counter = "lgkm"
    reads = numbers(address.registers, *(d.registers for d in datas))
    return Step(inst, run, reads)


def _atomic(inst: Instruction) -> Step:
    name = inst.name[3:]
    returning = "_rtn" in name
    name = name.replace("_rtn", "")
    name = {"wrxchg_b32": "swap_b32", "storexchg_b32": "swap_b32"}.get(name, name)
    if name not in OPERATIONS:
        raise Unsupported(inst.name)
    kind, function = OPERATIONS[name]
    size = np.dtype(kind).itemsize
    texts = list(inst.operands)
    held = destination(texts.pop(0), size) if returning else None
    address = source(texts[0], "u32", 0, _bare(inst))
    data = data_of(inst, texts[1], size, None)
    offset = inst.number("offset")

    def run(g: Group) -> None:
        machine = g.machine
        waves, shadow = waves_of(g), machine.lds_shadow
        at = _places(g, address, offset, size)
        values, undefined = data(g)
        if undefined is not None and undefined.any():
            raise g.mistake("its data are registers that nothing wrote")
        access, before = None, np.zeros(0, f"u{size}")
        if len(at):
            found = shadow.write(at, size, machine.stamps[waves], np.ones(len(at), bool), True)
            machine.race(found, "LDS", True)
            values = np.ascontiguousarray(values).view(f"u{size}").reshape(-1)
            before = combine(machine.lds.view(size), at, kind, function, values)
            machine.lds_undefined.store(at, size, 0)
            access = (shadow, at, size, waves, "LDS", True, True)
        if held is not None:
            words = before if size == 4 else before.view("u4").reshape(-1, size // 4)
            deliver(g, held, words, None, size, False, None)
        machine.waits.issue(g, "lgkm", tuple(held.numbers) if held else (), inst.text, access)

    run.counter = "lgkm"
    writes = numbers(held.numbers) if held else frozenset()
    return Step(inst, run, numbers(address.registers, data.registers), writes)


def _permute(inst: Instruction) -> Step:
    held = destination(inst.operands[0], 4)
    swizzle = inst.name == "ds_swizzle_b32"
    data = source(inst.operands[1 if swizzle else 2], "u32", 0, _bare(inst))
    address = None if swizzle else source(inst.operands[1], "u32", 0, _bare(inst))
    offset = inst.number("offset") if not swizzle else 0
    reads = numbers(data.registers, address.registers if address else ())

    def run(g: Group) -> None:
        own = np.arange(g.lanes)
        values = np.broadcast_to(data.value(g), g.exec.shape)
        bad = None
        if not g.unclean.isdisjoint(data.registers):
            bad = np.broadcast_to(data.undefined(g), g.exec.shape)
        if address is None:
            at = np.broadcast_to(_swizzled(inst.modifiers["offset"], own), g.exec.shape)
        else:
            if (
                not g.unclean.isdisjoint(address.registers)
                and active(g, address.undefined(g)).any()
            ):
                raise g.mistake("its address is made of registers that nothing wrote")
            at = (address.value(g).astype("i8") + offset) // 4 % g.lanes
        if inst.name == "ds_permute_b32":
            result, worse = np.zeros_like(values), np.zeros_like(values)
            rows = np.broadcast_to(np.arange(len(g.ids))[:, None], at.shape)
            result[rows[g.exec], at[g.exec]] = values[g.exec]
            if bad is not None:
                worse[rows[g.exec], at[g.exec]] = bad[g.exec]
        else:
            there = g.full or np.take_along_axis(g.exec, at, 1)
            result = np.where(there, np.take_along_axis(values, at, 1), np.uint32(0))
            worse = (
                None if bad is None
                else np.where(there, np.take_along_axis(bad, at, 1), np.uint32(0))
            )  # fmt: skip
        put(g, held.first, result, worse if bad is not None else None)
        g.machine.waits.issue(g, "lgkm", tuple(held.numbers), inst.text)

    run.counter = "lgkm"
    return Step(inst, run, reads, numbers(held.numbers))


def _swizzled(pattern: str, own: np.ndarray) -> np.ndarray:
    found = re.match(r"swizzle\((\w+),\s*(.*)\)$", pattern)
    if found:
        mode, rest = found[1], found[2]
        numbers_ = [int(x) for x in re.findall(r"\d+", rest)]
        if mode == "QUAD_PERM":
            return own // 4 * 4 + np.array(numbers_)[own % 4]
        if mode == "BROADCAST":
            return own // numbers_[0] * numbers_[0] + numbers_[1]
        if mode == "SWAP":
            return own ^ numbers_[0]
        if mode == "REVERSE":
            return own ^ (numbers_[0] - 1)
        if mode == "BITMASK_PERM":
            result = own.copy()
            for bit, kind in zip((16, 8, 4, 2, 1), rest.strip('"'), strict=True):
                if kind in "01":
                    result = result & ~bit | (bit if kind == "1" else 0)
                elif kind == "i":
                    result = result ^ bit
            return result
        raise Unsupported(pattern)
    offset = int(pattern, 0)
    if offset & 0x8000:
        return own // 4 * 4 + (offset >> 2 * (own % 4) & 3)
    and_, or_, xor = offset & 31, offset >> 5 & 31, offset >> 10 & 31
    return own // 32 * 32 + ((own % 32 & and_ | or_) ^ xor)
