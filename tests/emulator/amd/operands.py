"""Operands: functions that read and write the registers of a group as arrays of a type.

Types are ``f32``, ``i16``, ``u64`` and the like; ``b32`` is a ``u32`` whose modifiers are those of
floats. Arrays have the shape (waves, lanes), or one that is broadcast to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .group import Group
from .lanes import dpp_lanes
from .registers import SGPR, Registers, constant, registers, scalar
from .text import Instruction, Unsupported

DTYPES = {
    "u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "f16": "f2", "b16": "u2", "bf16": "u2",
    "u32": "u4", "i32": "i4", "f32": "f4", "b32": "u4", "u64": "u8", "i64": "i8", "f64": "f8",
}  # fmt: skip
Value = Any
_HALF = np.uint64(32)
_SELECTIONS = {
    "DWORD": (0, 32), "WORD_0": (0, 16), "WORD_1": (16, 16), "BYTE_0": (0, 8), "BYTE_1": (8, 8),
    "BYTE_2": (16, 8), "BYTE_3": (24, 8),
}  # fmt: skip


def bits_of(kind: str) -> int:
    """Return the width of a type."""
    return np.dtype(DTYPES[kind]).itemsize * 8


@dataclass
class Source:
    """What an instruction reads.

    Attributes
    ----------
    value
        ``(group) -> array``.
    undefined
        ``(group) -> array`` of unsigned integers of the value's width: bits that nothing wrote.
    registers
        Numbers of what is read.
    """

    value: Callable[[Group], Value]
    undefined: Callable[[Group], Value]
    registers: tuple[int, ...]


def strip(text: str) -> tuple[str, bool, bool, bool]:
    """Take modifiers off an operand: its name, and whether it is negated, absolute, extended."""
    negated = absolute = extended = False
    while True:
        if text.startswith("sext(") or text.startswith("neg(") or text.startswith("abs("):
            kind, text = text.split("(", 1)[0], text[text.index("(") + 1 : -1]
            extended |= kind == "sext"
            negated |= kind == "neg"
            absolute |= kind == "abs"
        elif text.startswith("|") and text.endswith("|"):
            text, absolute = text[1:-1], True
        elif text.startswith("-") and not text[1:2].isdigit():
            text, negated = text[1:], True
        else:
            return text, negated, absolute, extended


def source(text: str, kind: str, at: int, inst: Instruction, half: int | None = None) -> Source:
    """Read an operand of a vector instruction.

    Parameters
    ----------
    text
        As the instruction names it.
    kind
        The type that it is read as.
    at
        Its number among the sources.
    half
        Which 16 bits of a register, if the instruction says so elsewhere.
    """
    name, negated, absolute, extended = strip(text)
    held = registers(name)
    bits, is_float = bits_of(kind), kind[0] in "fb"
    if held is None:
        is_float &= kind not in ("b32", "b16", "bf16")
        value = scalar(DTYPES[kind], constant(name, bits, is_float))
        made = Source(lambda g: value, lambda g: np.uint8(0), ())
    else:
        if half is None and bits == 16:
            half = held.half
        made = _read(held, kind, half or 0)
    if inst.encoding == "sdwa":
        made = _selected(made, kind, inst.modifiers.get(f"src{at}_sel", "DWORD"), extended, text)
    if at == 0 and inst.encoding.endswith("dpp"):
        made = _moved(made, inst)
    if absolute or negated:
        made = _signed(made, kind, absolute, negated)
    return made


def _read(held: Registers, kind: str, half: int) -> Source:
    bits, n = bits_of(kind), held.first
    dtype = DTYPES[kind]
    if held.is_scalar:
        s = n - SGPR
        if bits == 64:
            return Source(
                lambda g: pair(g.s[s], g.s[s + 1])[:, None].view(dtype),
                lambda g: pair(g.undefined_bits(n), g.undefined_bits(n + 1))[:, None],
                (n, n + 1),
            )
        if bits == 32:
            return Source(
                lambda g: g.typed_scalars[kind][s][:, None],
                lambda g: g.undefined_bits(n)[:, None],
                (n,),
            )
        shift = np.uint32(16 * half)
        unsigned = f"u{bits // 8}"
        return Source(
            lambda g: (g.s[s] >> shift).astype(unsigned)[:, None].view(dtype),
            lambda g: (g.undefined_bits(n) >> shift).astype(unsigned)[:, None],
            (n,),
        )
    if bits == 64:
        return Source(
            lambda g: pair(g.v[g.row(n)], g.v[g.row(n) + 1]).view(dtype),
            lambda g: pair(g.undefined_bits(n), g.undefined_bits(n + 1)),
            (n, n + 1),
        )
    if bits == 32:
        return Source(lambda g: g.typed[kind][g.row(n)], lambda g: g.undefined_bits(n), (n,))
    step, unsigned = 32 // bits, f"u{bits // 8}"
    shift = np.uint32(bits * half)
    return Source(
        lambda g: g.typed[kind][g.row(n)][:, half::step],
        lambda g: (g.undefined_bits(n) >> shift).astype(unsigned),
        (n,),
    )


def pair(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Join arrays of 32 bits to one of 64."""
    return low.astype("u8") | high.astype("u8") << _HALF


def _selected(made: Source, kind: str, selection: str, extended: bool, text: str) -> Source:
    """Read a byte or a half of a register (SDWA)."""
    start, width = _SELECTIONS[selection]
    if selection == "DWORD" and bits_of(kind) == 32:
        return made
    name = strip(text)[0]
    held = registers(name)
    whole = made if held is None else _read(held, "u32", 0)
    dtype, unsigned = DTYPES[kind], f"u{bits_of(kind) // 8}"
    part = f"{'i' if extended else 'u'}{width // 8}"
    shift = np.uint32(start)

    def value(g: Group) -> Value:
        bits = (np.asarray(whole.value(g), "u4") >> shift).astype(f"u{width // 8}").view(part)
        return bits.astype(unsigned).view(dtype)

    def undefined(g: Group) -> Value:
        bits = (np.asarray(whole.undefined(g), "u4") >> shift).astype(f"u{width // 8}")
        return bits.astype(unsigned)

    return Source(value, undefined, whole.registers)


def _moved(made: Source, inst: Instruction) -> Source:
    """Read another lane's register (DPP); where there is none, 0."""

    any_lane = inst.number("fi") == 1

    def moved(read: Callable[[Group], Value]) -> Callable[[Group], Value]:
        def value(g: Group) -> Value:
            lanes, valid = dpp_lanes(inst, g.lanes)
            whole = np.broadcast_to(read(g), g.exec.shape)
            usable = valid if g.full or any_lane else valid & g.exec[:, lanes]
            return np.where(usable, whole[:, lanes], np.zeros((), whole.dtype))

        return value

    return Source(moved(made.value), moved(made.undefined), made.registers)


def _signed(made: Source, kind: str, absolute: bool, negated: bool) -> Source:
    read, bits = made.value, bits_of(kind)
    if kind[0] not in "fb":
        if absolute:
            raise Unsupported(f"the absolute value of an operand of type {kind}")
        return Source(lambda g: np.negative(read(g)), made.undefined, made.registers)
    if kind[0] == "b":
        sign = scalar(DTYPES[kind], 1 << bits - 1)

        def value(g: Group) -> Value:
            x = read(g)
            x = x & ~sign if absolute else x
            return x ^ sign if negated else x

        return Source(value, made.undefined, made.registers)
    if absolute and negated:
        return Source(lambda g: -np.abs(read(g)), made.undefined, made.registers)
    function = np.abs if absolute else np.negative
    return Source(lambda g: function(read(g)), made.undefined, made.registers)


@dataclass
class Target:
    """What an instruction writes.

    Attributes
    ----------
    write
        ``(group, value, undefined or None, lanes or None)``; without ``lanes`` the active ones.
    registers
        Numbers of what is written.
    """

    write: Callable[..., None]
    registers: tuple[int, ...]


def target(text: str, kind: str, inst: Instruction, keeps_half: bool, half: int | None) -> Target:
    """Write a vector register.

    Parameters
    ----------
    keeps_half
        Whether a result of 16 bits leaves the other half of the register, which else becomes 0.
    half
        Where the result goes, if the instruction says so elsewhere.
    """
    held = registers(text)
    if held is None or held.is_scalar:
        raise Unsupported(f"{text!r} as a vector register in {inst.text!r}")
    bits, n, dtype = bits_of(kind), held.first, np.dtype(DTYPES[kind])
    if inst.encoding == "sdwa":
        return _selected_target(held, inst)
    if bits == 16 and half is None:
        half = held.half
    if bits == 64:

        def write(g: Group, value: Value, undefined: Value = None, lanes: Value = None) -> None:
            value = np.asarray(value, dtype).view("u8")
            low, high = (None, None) if undefined is None else split(undefined)
            put(g, n, value.astype("u4"), low, lanes)
            put(g, n + 1, (value >> _HALF).astype("u4"), high, lanes)

        return Target(write, (n, n + 1))
    if bits == 32:

        def write(g: Group, value: Value, undefined: Value = None, lanes: Value = None) -> None:
            put(g, n, np.asarray(value, dtype).view("u4"), undefined, lanes)

        return Target(write, (n,))
    at = half or 0
    if keeps_half:

        def write(g: Group, value: Value, undefined: Value = None, lanes: Value = None) -> None:
            put_half(g, n, at, np.asarray(value, dtype).view("u2"), undefined, lanes)

        return Target(write, (n,))

    def write(g: Group, value: Value, undefined: Value = None, lanes: Value = None) -> None:
        value = np.asarray(value, dtype).view(f"u{bits // 8}").astype("u4")
        put(g, n, value, None if undefined is None else np.asarray(undefined, "u4"), lanes)

    return Target(write, (n,))


def split(undefined: Value) -> tuple[Value, Value]:
    """Take 64 bits apart."""
    wide = np.asarray(undefined, "u8")
    return wide.astype("u4"), (wide >> _HALF).astype("u4")


def put(g: Group, n: int, value: Value, undefined: Value = None, lanes: Value = None) -> None:
    """Write a vector register in some lanes, or the active ones."""
    row = g.row(n)
    if lanes is None and not g.full:
        lanes = g.exec
    if undefined is not None and np.any(undefined if lanes is None else undefined * lanes):
        if n not in g.unclean:
            g.undefined[row] = 0
            g.unclean.add(n)
        if lanes is None:
            g.undefined[row] = undefined
        else:
            np.copyto(g.undefined[row], undefined, where=lanes)
    elif n in g.unclean:
        if lanes is None:
            g.unclean.discard(n)
        else:
            np.copyto(g.undefined[row], np.uint32(0), where=lanes)
    if lanes is None:
        g.v[row] = value
    else:
        np.copyto(g.v[row], value, where=lanes)


def put_half(
    g: Group, n: int, half: int, value: Value, undefined: Value = None, lanes: Value = None
) -> None:
    """Write 16 bits of a vector register."""
    row = g.row(n)
    mask = np.uint32(0xFFFF0000 if half == 0 else 0xFFFF)
    shift = np.uint32(16 * half)
    whole = (g.v[row] & mask) | (np.asarray(value, "u4") << shift)
    if undefined is None and n not in g.unclean:
        put(g, n, whole, None, lanes)
        return
    old = g.undefined[row] if n in g.unclean else np.uint32(0)
    new = np.asarray(0 if undefined is None else undefined, "u4") << shift
    put(g, n, whole, (old & mask) | new, lanes)


def _selected_target(held: Registers, inst: Instruction) -> Target:
    start, width = _SELECTIONS[inst.modifiers.get("dst_sel", "DWORD")]
    unused, n = inst.modifiers.get("dst_unused", "UNUSED_PAD"), held.first
    mask = np.uint32(((1 << width) - 1) << start)
    shift = np.uint32(start)
    if unused == "UNUSED_SEXT":
        raise Unsupported(f"{unused} in {inst.text!r}")

    def write(g: Group, value: Value, undefined: Value = None, lanes: Value = None) -> None:
        value = np.asarray(value)
        value = value.view(f"u{value.dtype.itemsize}").astype("u4") << shift & mask
        bad = None if undefined is None else np.asarray(undefined, "u4") << shift & mask
        if unused == "UNUSED_PRESERVE":
            value = value | g.v[g.row(n)] & ~mask
            if n in g.unclean:
                bad = (np.uint32(0) if bad is None else bad) | g.undefined[g.row(n)] & ~mask
        put(g, n, value, bad, lanes)

    return Target(write, (n,))
