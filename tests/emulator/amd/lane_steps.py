"""Instructions that move values between lanes, or between lanes and scalars."""

from typing import Any

import numpy as np

from .group import Group
from .operands import put, source
from .registers import SGPR, registers
from .scalar_operands import put_scalar, scalar_source
from .step import Processor, Step, numbers
from .text import Instruction, Unsupported


def lane_step(inst: Instruction, processor: Processor) -> Step | None:
    """Decode such an instruction; None if it is none."""
    name = inst.name
    if name in ("v_readfirstlane_b32", "v_readlane_b32"):
        return _read(inst)
    if name == "v_writelane_b32":
        return _write(inst)
    if name in ("v_swap_b32", "v_swap_b16"):
        return _swap(inst)
    if name in ("v_mbcnt_lo_u32_b32", "v_mbcnt_hi_u32_b32"):
        return _count_below(inst)
    if name in ("v_permlanex16_b32", "v_permlane16_b32", "v_permlane64_b32"):
        return _permlane(inst)
    if name in ("v_permlane32_swap_b32", "v_permlane16_swap_b32"):
        return _swap_halves(inst)
    return None


def _bare(inst: Instruction) -> Instruction:
    return Instruction(inst.name, "", inst.operands, {}, inst.text, inst.address)


def _vector(text: str) -> int:
    held = registers(text)
    if held is None or held.is_scalar:
        raise Unsupported(f"{text!r} as a vector register")
    return held.first


def _read(inst: Instruction) -> Step:
    held = registers(inst.operands[0])
    if held is None:
        raise Unsupported(inst.text)
    given = source(inst.operands[1], "u32", 0, _bare(inst))
    lane = scalar_source(inst.operands[2], "u32") if len(inst.operands) > 2 else None
    reads = numbers(given.registers, lane.registers if lane else ())

    def run(g: Group) -> None:
        rows = np.arange(len(g.ids))
        values = np.broadcast_to(given.value(g), g.exec.shape)
        if lane is None:
            at: Any = np.argmax(g.exec, 1)
        else:
            at = np.broadcast_to(lane.value(g) % np.uint32(g.lanes), g.ids.shape)
        bad = None
        if not g.unclean.isdisjoint(given.registers):
            bad = np.broadcast_to(given.undefined(g), g.exec.shape)[rows, at]
        put_scalar(g, held.first - SGPR, values[rows, at], bad)

    return Step(inst, run, reads, frozenset({held.first}))


def _write(inst: Instruction) -> Step:
    n = _vector(inst.operands[0])
    value = scalar_source(inst.operands[1], "u32")
    lane = scalar_source(inst.operands[2], "u32")

    def run(g: Group) -> None:
        mask = np.zeros(g.exec.shape, bool)
        at = np.broadcast_to(lane.value(g) % np.uint32(g.lanes), g.ids.shape)
        mask[np.arange(len(g.ids)), at] = True
        bad = None
        if not g.unclean.isdisjoint(value.registers):
            bad = np.broadcast_to(np.asarray(value.undefined(g), "u4"), g.ids.shape)[:, None]
        new = np.broadcast_to(value.value(g), g.ids.shape)[:, None]
        put(g, n, new, bad, mask)

    return Step(inst, run, numbers(value.registers, lane.registers), frozenset({n}))


def _swap(inst: Instruction) -> Step:
    if inst.name == "v_swap_b16":
        raise Unsupported(inst.text)
    a, b = (_vector(text) for text in inst.operands[:2])

    def run(g: Group) -> None:
        rows = g.row(a), g.row(b)
        values = [g.v[row].copy() for row in rows]
        bad = [
            g.undefined[row].copy() if n in g.unclean else None
            for n, row in zip((a, b), rows, strict=True)
        ]
        put(g, a, values[1], bad[1])
        put(g, b, values[0], bad[0])

    return Step(inst, run, frozenset({a, b}), frozenset({a, b}))


def _count_below(inst: Instruction) -> Step:
    high = inst.name == "v_mbcnt_hi_u32_b32"
    n = _vector(inst.operands[0])
    mask, start = (source(text, "u32", at, inst) for at, text in enumerate(inst.operands[1:3]))
    reads = numbers(mask.registers, start.registers)

    def run(g: Group) -> None:
        lane = np.arange(g.lanes)
        below = np.clip(lane - 32 if high else np.minimum(lane, 32), 0, 32)
        chosen = np.broadcast_to(mask.value(g), g.exec.shape).astype("u8")
        chosen = chosen & ((np.uint64(1) << below.astype("u8")) - np.uint64(1))
        bits = np.unpackbits(chosen[..., None].view("u1"), axis=-1).sum(-1, dtype="u4")
        bad = None
        if not g.unclean.isdisjoint(reads):
            spoiled = (np.asarray(mask.undefined(g)) != 0) | (np.asarray(start.undefined(g)) != 0)
            bad = np.where(spoiled, np.uint32(0xFFFFFFFF), np.uint32(0))
        put(g, n, bits + start.value(g), bad)

    return Step(inst, run, reads, frozenset({n}))


def _permlane(inst: Instruction) -> Step:
    n = _vector(inst.operands[0])
    given = source(inst.operands[1], "u32", 0, _bare(inst))
    selectors = [scalar_source(text, "u32") for text in inst.operands[2:4]]
    fetch = bool(inst.numbers("op_sel", [0, 0])[0])
    bound = bool(inst.numbers("op_sel", [0, 0])[1]) if "op_sel" in inst.modifiers else False
    reads = numbers(given.registers, *(s.registers for s in selectors))

    def run(g: Group) -> None:
        lane = np.arange(g.lanes)
        if inst.name == "v_permlane64_b32":
            at = np.broadcast_to(lane ^ 32 if g.lanes == 64 else lane, g.exec.shape)
        else:
            low, high = (np.broadcast_to(s.value(g), g.ids.shape).astype("u8") for s in selectors)
            whole = (low | high << np.uint64(32))[:, None]
            chosen = (whole >> (np.uint64(4) * (lane % 16).astype("u8")) & np.uint64(15)).astype(
                "i8"
            )
            row = lane // 16 * 16
            at = chosen + (row ^ 16 if inst.name == "v_permlanex16_b32" else row)
        values = np.broadcast_to(given.value(g), g.exec.shape)
        result = np.take_along_axis(values, at, 1)
        there = np.take_along_axis(g.exec, at, 1) | fetch
        bad = None
        if not g.unclean.isdisjoint(given.registers):
            bad = np.take_along_axis(np.broadcast_to(given.undefined(g), g.exec.shape), at, 1)
        if bound:
            put(g, n, np.where(there, result, np.uint32(0)), bad)
        else:
            put(g, n, result, bad, g.exec & there)

    return Step(inst, run, reads, frozenset({n}))


def _swap_halves(inst: Instruction) -> Step:
    """Decode v_permlane32_swap: the upper lanes of one register with the lower of another."""
    a, b = (_vector(text) for text in inst.operands[:2])
    size = 32 if "32" in inst.name.split("_")[1] else 16

    def run(g: Group) -> None:
        first, second = g.v[g.row(a)].copy(), g.v[g.row(b)].copy()
        lane = np.arange(g.lanes)
        odd = lane // size % 2 == 1
        put(g, a, np.where(odd, second[:, lane ^ size], first))
        put(g, b, np.where(odd, second, first[:, lane ^ size]))

    return Step(inst, run, frozenset({a, b}), frozenset({a, b}))
