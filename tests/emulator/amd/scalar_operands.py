"""Operands in scalar registers: numbers of a wave, and masks with a bit a lane."""

import numpy as np

from .group import Group
from .operands import DTYPES, Source, Target, Value, bits_of, pair, split, strip
from .registers import EXEC, NULL, SGPR, constant, registers, scalar
from .text import Unsupported

_HALF = np.uint64(32)


def scalar_source(text: str, kind: str) -> Source:
    """Read an operand of a scalar instruction: arrays over waves."""
    name, negated, _, _ = strip(text)
    held, bits = registers(name), bits_of(kind)
    dtype = DTYPES[kind]
    if held is None:
        value = scalar(dtype, constant(name, bits, kind[0] == "f"))
        return Source(lambda g: value, lambda g: np.uint8(0), ())
    if not held.is_scalar or negated:
        raise Unsupported(f"{text!r} as a scalar register")
    s = held.first - SGPR
    if s == NULL:
        return Source(lambda g: scalar(dtype, 0), lambda g: np.uint8(0), ())
    if bits == 64:
        return Source(
            lambda g: pair(g.s[s], g.s[s + 1]).view(dtype),
            lambda g: pair(g.undefined_bits(held.first), g.undefined_bits(held.first + 1)),
            (held.first, held.first + 1),
        )
    return Source(
        lambda g: g.typed_scalars[kind][s], lambda g: g.undefined_bits(held.first), (held.first,)
    )


def put_scalar(g: Group, s: int, value: Value, undefined: Value = None) -> None:
    """Write 32 bits of a scalar register, which may be half of the execution mask."""
    if s == NULL:
        return
    if undefined is not None and np.any(undefined):
        if s in (EXEC, EXEC + 1):
            raise g.mistake("the execution mask is made of registers that nothing wrote")
        g.scalar_undefined[s] = undefined
        g.unclean.add(SGPR + s)
    elif SGPR + s in g.unclean:
        g.unclean.discard(SGPR + s)
        g.scalar_undefined[s] = 0
    g.s[s] = value


def scalar_target(text: str, kind: str) -> Target:
    """Write a scalar register, or two."""
    held = registers(text)
    if held is None or not held.is_scalar:
        raise Unsupported(f"{text!r} as a scalar register")
    s, dtype, bits = held.first - SGPR, np.dtype(DTYPES[kind]), bits_of(kind)
    masks = s in (EXEC, EXEC + 1)

    def write(g: Group, value: Value, undefined: Value = None) -> None:
        value = np.asarray(value, dtype).view(f"u{bits // 8}")
        if bits == 64:
            low, high = (None, None) if undefined is None else split(undefined)
            put_scalar(g, s, value.astype("u4"), low)
            put_scalar(g, s + 1, (value >> _HALF).astype("u4"), high)
        else:
            put_scalar(g, s, value, undefined)
        if masks:
            g.set_exec(g.mask(pair(g.s[EXEC], g.s[EXEC + 1])))

    return Target(write, (held.first,) if bits == 32 else (held.first, held.first + 1))


def mask_source(text: str) -> Source:
    """Read a mask of lanes from scalar registers."""
    held = registers(text)
    if held is None:
        bits = constant(text, 64, False)
        value = np.uint64(bits)
        return Source(lambda g: g.mask(np.full(len(g.ids), value)), lambda g: np.uint8(0), ())
    n = held.first

    def undefined(g: Group) -> Value:
        return g.mask(pair(g.undefined_bits(n), g.undefined_bits(n + 1)))

    return Source(lambda g: g.mask_of(n), undefined, (n, n + 1) if held.count == 2 else (n,))


def mask_target(text: str, lanes: int) -> Target:
    """Write a mask of lanes to scalar registers; lanes that are not active are 0."""
    held = registers(text)
    if held is None or not held.is_scalar:
        raise Unsupported(f"{text!r} as a mask of lanes")
    s = held.first - SGPR

    def write(g: Group, value: Value, undefined: Value = None) -> None:
        value = np.asarray(value, bool)
        bits = g.bits(value if g.full else value & g.exec)
        low = high = None
        if undefined is not None:
            bad = g.bits(np.asarray(undefined, bool) & g.exec)
            low, high = split(bad)
        if s == EXEC:
            if undefined is not None and np.any(low | high):
                raise g.mistake("the execution mask is made of registers that nothing wrote")
            g.set_exec(g.mask(bits))
            return
        put_scalar(g, s, bits.astype("u4"), low)
        if lanes == 64:
            put_scalar(g, s + 1, (bits >> _HALF).astype("u4"), high)

    if s == NULL:
        return Target(lambda *_: None, ())
    return Target(write, tuple(range(held.first, held.first + lanes // 32)))
