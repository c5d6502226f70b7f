"""Matrix instructions of CDNA (MFMA) and RDNA 3 (WMMA), and dot products.

MFMA of one block: lane ``size * g + i`` holds row i of A and column i of B, of k those of group g;
of C it holds column i, four rows of each 4 * groups. WMMA: lane i holds all k of row i of A and
column i of B, lane i + 16 has to hold the same; register r of C is row 2 r + lane / 16.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .arithmetic import bf16_to_f32
from .float8 import float8_to_f32
from .group import Group
from .lanes import dpp_written
from .operands import put, source
from .registers import Registers, constant, registers
from .step import Processor, Step, numbers
from .text import Instruction, Unsupported

_MFMA = re.compile(
    r"v_mfma_(f32|i32|f64)_(\d+)x(\d+)x(\d+)(?:_?(\d+)b)?_?"
    r"(f16|bf16_1k|bf16|i8|xf32|f32|f64|fp8_fp8|fp8_bf8|bf8_fp8|bf8_bf8)$"
)
_WMMA = re.compile(r"v_wmma_(f32|i32|f16|bf16)_16x16x16_(f16|bf16|iu8|iu4)$")
_ITEMS = {"f16": 2, "bf16": 2, "i8": 1, "xf32": 4, "f32": 4, "f64": 8, "fp8": 1, "bf8": 1}


def matrix_step(inst: Instruction, processor: Processor) -> Step | None:
    """Decode a matrix instruction; None if it is none."""
    found = _MFMA.match(inst.name)
    if found:
        return _mfma(inst, found, processor)
    found = _WMMA.match(inst.name)
    if found:
        return _wmma(inst, found)
    if inst.name.startswith("v_dot"):
        return dot_step(inst)
    return None


def _range(text: str) -> Registers:
    held = registers(text)
    if held is None or held.is_scalar:
        raise Unsupported(f"{text!r} as vector registers")
    return held


def _stack(g: Group, held: Registers) -> np.ndarray:
    """Return registers as (waves, lanes, registers)."""
    return np.stack([g.v[g.row(n)] for n in held.numbers], -1)


def _defined(g: Group, held: list[Registers]) -> None:
    for part in held:
        for n in part.numbers:
            if n in g.unclean and g.undefined[g.row(n)].any():
                raise g.mistake(f"its operands are registers that nothing wrote: {part}")


def widen(words: np.ndarray, kind: str, arch: str = "gfx942") -> np.ndarray:
    """Return the items in registers, the last axis, as 64-bit numbers."""
    words = np.ascontiguousarray(words)
    if kind == "f16":
        return words.view("f2").astype("f8")
    if kind == "bf16":
        return bf16_to_f32(words.view("u2")).astype("f8")
    if kind in ("f32", "f64"):
        return words.view(kind[0] + str(int(kind[1:]) // 8)).astype("f8")
    if kind == "xf32":  # ten bits of mantissa, rounded to nearest
        bits = words.astype("u8") + 0xFFF + (words >> np.uint32(13) & np.uint32(1))
        rounded = (bits & 0xFFFFE000).astype("u4").view("f4")
        return np.where(np.isfinite(words.view("f4")), rounded, words.view("f4")).astype("f8")
    if kind == "i8":
        return words.view("i1").astype("f8")
    if kind == "u8":
        return words.view("u1").astype("f8")
    return float8_to_f32(words.view("u1"), kind, arch != "gfx950").astype("f8")


def _accumulator(g: Group, text: str, held: Registers | None, kind: str, count: int) -> Any:
    if held is None:
        bits = constant(text, 64 if kind == "f64" else 32, kind[0] == "f")
        value = np.array([bits], "u8" if kind == "f64" else "u4").view(_numpy(kind))[0]
        return np.full((*g.exec.shape, count), value)
    return _stack(g, held).view(_numpy(kind))


def _numpy(kind: str) -> str:
    return {"f32": "f4", "i32": "i4", "f64": "f8", "f16": "f2"}[kind]


def _mfma(inst: Instruction, found: re.Match[str], processor: Processor) -> Step:
    out, rows, columns, k, blocks_text, types = found.groups()
    m, n, k = int(rows), int(columns), int(k)
    if m != n or any(inst.number(x) for x in ("cbsz", "abid", "blgp")):
        raise Unsupported(inst.text)
    kinds = types.split("_") if types[2:4] == "8_" else [types.removesuffix("_1k")] * 2
    target = _range(inst.operands[0])
    a, b = _range(inst.operands[1]), _range(inst.operands[2])
    text = inst.operands[3]
    c = registers(text)
    item = _ITEMS[kinds[0]]
    per_lane = a.count * 4 // item  # of k
    blocks = 64 * per_lane // (m * k)
    groups = 64 // (m * blocks)
    if (blocks_text and int(blocks_text) != blocks) or groups * per_lane != k:
        raise Unsupported(inst.text)
    count = m * n * blocks // 64
    lane = np.arange(64)
    # Of register r and lane l: block, row and column of C.
    r = np.arange(count)
    wide = 4 if out != "f64" else 1
    lane_rows = 64 // n  # lanes that share a column, over all blocks
    if blocks == 1:
        row = wide * lane_rows * (r[None] // wide) + wide * (lane[:, None] // n) + r[None] % wide
        block = np.zeros_like(row)
    else:  # rows of all blocks, one block below the other
        flat = 4 * lane_rows * (r[None] // 4) + 4 * (lane[:, None] // n) + r[None] % 4
        block, row = flat // m, flat % m
    column = np.broadcast_to(lane[:, None] % n, row.shape)

    def run(g: Group) -> None:
        _defined(g, [x for x in (a, b, c) if x is not None])
        if not g.full:
            raise g.mistake("it runs while lanes are inactive, which it does not heed")
        waves = len(g.ids)
        left, right = (
            widen(_stack(g, held), kind, processor.arch).reshape(waves, groups, blocks, m, per_lane)
            for held, kind in zip((a, b), kinds, strict=True)
        )
        # (waves, blocks, m, k)
        left, right = (
            x.transpose(0, 2, 3, 1, 4).reshape(waves, blocks, m, k) for x in (left, right)
        )
        product = left @ right.swapaxes(-1, -2)
        old = _accumulator(g, text, c, out, count)
        parts = product[:, block, row, column]
        if out == "i32":
            total = (parts.astype("i8") + old).astype("i4")
        else:
            total = (parts + old).astype(_numpy(out))
        words = np.ascontiguousarray(total).view("u4").reshape(waves, 64, -1)
        for i, register in enumerate(target.numbers):
            put(g, register, words[..., i])

    reads = numbers(a.numbers, b.numbers, c.numbers if c is not None else ())
    return Step(inst, run, reads, numbers(target.numbers))


def _wmma(inst: Instruction, found: re.Match[str]) -> Step:
    out, kind = found.groups()
    if kind == "iu4" or out == "bf16":
        raise Unsupported(inst.text)
    target = _range(inst.operands[0])
    a, b = _range(inst.operands[1]), _range(inst.operands[2])
    text = inst.operands[3]
    c = registers(text)
    signed = inst.numbers("neg_lo", [0, 0, 0])
    high = inst.numbers("neg_hi", [0, 0, 0])
    if (kind != "iu8" and (any(signed) or any(high))) or "clamp" in inst.modifiers:
        raise Unsupported(inst.text)
    upper = inst.numbers("op_sel", [0, 0, 0])[2] if out == "f16" else 0
    lane, r = np.arange(32), np.arange(8)
    row = 2 * r[None] + lane[:, None] // 16
    column = np.broadcast_to(lane[:, None] % 16, row.shape)

    def run(g: Group) -> None:
        _defined(g, [x for x in (a, b, c) if x is not None])
        if not g.full:
            raise g.mistake("it runs while lanes are inactive, which it does not heed")
        sides = []
        for at, (held, name) in enumerate(((a, "A"), (b, "B"))):
            words = _stack(g, held)
            if (words[:, :16] != words[:, 16:]).any():
                raise g.mistake(f"lanes 16 to 31 hold other values of {name} than lanes 0 to 15")
            item = kind if kind != "iu8" else ("i8" if signed[at] else "u8")
            sides.append(widen(words[:, :16], item))
        product = (sides[0] @ sides[1].swapaxes(-1, -2))[:, row, column]
        if out == "f16":
            old = _accumulator(g, text, c, "f32", 8)
            if c is not None:
                old = np.ascontiguousarray(_stack(g, c)).view("f2")[..., upper::2]
            total = (product + old).astype("f2").view("u2").astype("u4") << np.uint32(16 * upper)
            keep = np.uint32(0xFFFF if upper else 0xFFFF0000)
            words = total | (_stack(g, target) & keep)
        else:
            old = _accumulator(g, text, c, out, 8)
            if out == "i32":
                total = (product.astype("i8") + old).astype("i4")
            else:
                total = (product + old).astype("f4")
            words = np.ascontiguousarray(total).view("u4")
        for i, register in enumerate(target.numbers):
            put(g, register, words[..., i])

    reads = numbers(a.numbers, b.numbers, c.numbers if c is not None else ())
    return Step(inst, run, reads, numbers(target.numbers))


_DOT = re.compile(r"v_dot(2|4|8)(c|acc)?_(f32|i32|u32|f16)_(f16|bf16|i8|u8|iu8|i4|u4|iu4|i16|u16)$")


def dot_step(inst: Instruction) -> Step:
    """Decode a dot product."""
    compute, reads, writes = dot_parts(inst)

    def run(g: Group) -> None:
        ((write, value, undefined, lanes),) = compute(g)
        write(g, value, undefined, lanes)

    return Step(inst, run, reads, writes)


def dot_parts(inst: Instruction) -> tuple[Callable[[Group], list[Any]], Any, Any]:
    """Return what a dot product computes, and the registers that it reads and writes."""
    found = _DOT.match(inst.name)
    if not found or found[4].endswith("4") or found[3] == "f16":
        raise Unsupported(inst.text)
    accumulating, out, kind = bool(found[2]), found[3], found[4]
    texts = list(inst.operands[1:3])
    third = inst.operands[0] if accumulating else inst.operands[3]
    bare = Instruction(inst.name, "", inst.operands, {}, inst.text, inst.address)
    carrier = inst if inst.encoding.endswith("dpp") else bare
    sources = [source(text, "u32", at, carrier) for at, text in enumerate(texts)]
    sum_kind = {"f32": "f32", "i32": "i32", "u32": "u32"}[out]
    sources.append(source(third, sum_kind, 2, bare))
    held = _range(inst.operands[0])
    reads = numbers(*(s.registers for s in sources))
    negative = [inst.numbers("neg_lo", [0] * 3), inst.numbers("neg_hi", [0] * 3)]
    selected = [inst.numbers("op_sel", [0] * 3), inst.numbers("op_sel_hi", [1] * 3)]

    def items(words: Any, at: int) -> Any:
        words = np.ascontiguousarray(words, "u4")[..., None]
        if kind == "iu8":
            return widen(words, "i8" if negative[0][at] else "u8")
        if kind in ("i16", "u16"):
            return words.view(f"{kind[0]}2").astype("f8")
        values = widen(words, kind)
        if kind in ("f16", "bf16"):
            halves = [values[..., selected[h][at]] * (-1) ** negative[h][at] for h in (0, 1)]
            values = np.stack(np.broadcast_arrays(*halves), -1)
        return values

    def write(g: Group, value: Any, undefined: Any, lanes: Any = None) -> None:
        put(g, held.first, value, undefined, lanes)

    def compute(g: Group) -> list[Any]:
        a, b = (items(s.value(g), at) for at, s in enumerate(sources[:2]))
        old = sources[2].value(g)
        total = (a * b).sum(-1) + np.asarray(old, "f8")
        if out == "f32":
            value = total.astype("f4").view("u4")
        else:
            info = np.iinfo("i4" if out == "i32" else "u4")
            if "clamp" in inst.modifiers:
                total = np.clip(total, info.min, info.max)
            value = total.astype("i8").astype("u4")
        bad = None
        if not g.unclean.isdisjoint(reads):
            spoiled = False
            for one in sources:
                spoiled = spoiled | (np.asarray(one.undefined(g)) != 0)
            bad = np.where(spoiled, np.uint32(0xFFFFFFFF), np.uint32(0))
        lanes = None
        if carrier is inst:
            lanes = dpp_written(inst, g.lanes, g.exec)
        return [(write, value, bad, lanes)]

    return compute, reads, frozenset({held.first})
