"""Device functions of FlashAttention: moves by address, and products of warpgroups as a whole."""

from __future__ import annotations

import re

import numpy as np

from .machine import WARP
from .memory import EmulationError, Registers


def _warpgroup(translate, _match, arguments, source):
    """Products of chained ``wgmma.m64nNk16``: A in registers or described, as B is."""
    pointers = [translate.pointer(x) for x in arguments]
    if source.count("64ull << 32") != source.count("_cvta_generic_to_shared"):
        raise EmulationError(f"no such descriptor is known: {source}")
    products = []
    for number in range(len(pointers) // 3):
        steps = [x for x in _INSTRUCTION.finditer(source) if _sums(x["acc"], source) == number]
        leading = {
            name: 16 * int(re.search(rf"{name}{number}_tile = [^;]*\((\d+)ull << 16\)", source)[1])
            for name in "ab" if f"{name}{number}_tile" in source
        }  # fmt: skip
        products.append(_chained(pointers[3 * number : 3 * number + 3], steps, leading))
    if sum(len(steps) for _, steps in products) != source.count("wgmma.mma_async"):
        raise EmulationError(f"an instruction is not known: {source}")

    def run(m):
        m.whole(m.warp // 4, "warpgroup")
        if m.per_block % (4 * WARP):
            raise EmulationError("a warpgroup is not whole")
        for product, _ in products:
            product(m)

    return run


_INSTRUCTION = re.compile(
    r"(?:add\.s64 a, %\d+, (?P<a_step>\d+); )?add\.s64 b, %\d+, (?P<step>\d+);\\n\\t\"\s*"
    r"\"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k16\.f32\.\w+\.\w+ \"\s*\""
    r"\{(?P<acc>[^}]*)\}, (?P<a>\{[^}]*\}|a), b, (?P<p>[pq]), 1, 1, (?:0, )?(?P<turned>\d);"
)


def _sums(operands, source):
    """Give the number of the product that operands ``%i, ..`` are the sums of."""
    text = re.findall(r'"\+f"\((\w+)\[\d+\]\)', source)[int(operands.split(",")[0][1:])]
    return int(text.removeprefix("acc"))


def _chained(pointers, steps, leading):
    """One product, and its instructions."""
    acc, a, tile = pointers
    n, is_transposed = int(steps[0]["n"]), steps[0]["turned"] == "1"
    keeps, is_described = steps[0]["p"] == "q", "a" in leading

    def run(m):
        (to, first), (held, begin), (memory, at) = acc(m), a(m), tile(m)
        groups = m.threads // (4 * WARP)
        total = to.read(slice(int(first), int(first) + n // 2)).astype("float32")
        total = total if keeps else np.zeros_like(total)
        for number, step in enumerate(steps):
            place = 16 * int(step["step"]) + _offsets(n, is_transposed, leading["b"])
            b = _panels(m, memory, at, place).reshape(groups, 16, n)
            if is_described:
                place = 16 * int(step["a_step"]) + _offsets(64, False, 0)
                left = _panels(m, held, begin, place).reshape(groups, 16, 64).transpose(0, 2, 1)
            else:
                words = held.read(slice(int(begin) + 8 * number, int(begin) + 8 * number + 8))
                # Of each warp: row group or that + 8, k or k + 8, pairs.
                parts = words.astype("float32").reshape(groups, 4, 8, 4, 2, 2, 2)
                left = parts.transpose(0, 1, 4, 2, 5, 3, 6).reshape(groups, 64, 16)
            product = (left @ b).reshape(groups, 4, 2, 8, n // 8, 4, 2)
            total = total + product.transpose(0, 1, 3, 5, 4, 2, 6).reshape(m.threads, n // 2)
        to.write(slice(int(first), int(first) + n // 2), total)

    return run, steps


def _offsets(n, is_transposed, leading):
    """Bytes of ``[k, column]`` of a tile before the swizzle."""
    k, column = np.divmod(np.arange(16 * n), n)
    if is_transposed:  # rows of 64 elements along n
        return column // 64 * leading + k // 8 * 1024 + k % 8 * 128 + column % 64 * 2
    return column // 8 * 1024 + column % 8 * 128 + k * 2


def _panels(m, memory, at, offset):
    """Elements of swizzled shared memory, as the first thread of each warpgroup describes them."""
    at = np.broadcast_to(np.reshape(at, (-1, 1)), (m.threads, 1)).astype("int64") * 2
    place = at + offset[None]
    place = place ^ (place >> 7 & 7) << 4
    found = memory.read(place // 2).reshape(m.threads // (4 * WARP), 4 * WARP, -1)
    return found[:, 0].astype("float32")


def _pair(translate, match, arguments, _source):
    """Store two float32, or both rounded to a half type, as neighbours."""
    from .expressions import scalar_type

    to, values = translate.pointer(arguments[0]), [translate.of(x) for x in arguments[1:]]
    name = {"f16": "float16", "bf16": "bfloat16", None: "float32"}[match.groupdict().get("short")]

    def run(m):
        target, at = to(m)
        parts = [np.broadcast_to(np.reshape(v(m), (-1, 1)), (m.threads, 1)) for v in values]
        value = np.concatenate(parts, 1).astype(scalar_type(name))
        _write_bits(target, at, value)

    return run


def _pair32(*given):
    return _pair(*given)


def _move(translate, _match, arguments, _source):
    to, origin = (translate.pointer(x) for x in arguments)

    def run(m):
        (target, at), (memory, begin) = to(m), origin(m)
        count = 16 // memory.data.dtype.itemsize
        if not isinstance(memory, Registers):
            memory.vector(begin, count)
        _write_bits(target, at, memory.read(_place(begin, count)))

    return run


def _zero(translate, _match, arguments, _source):
    to = translate.pointer(arguments[0])

    def run(m):
        target, at = to(m)
        _write_bits(target, at, np.zeros((m.threads, 16), "int8"))

    return run


def _place(begin, count):
    if np.ndim(begin) == 0:
        return slice(int(begin), int(begin) + count)
    return _vector(begin, count)


def _write_bits(target, at, value):
    """Write a vector of each thread, whatever type the memory has."""
    dtype = target.data.dtype
    value = np.ascontiguousarray(value).view(dtype)
    if not isinstance(target, Registers):
        target.vector(at, value.shape[1])
    target.write(_place(at, value.shape[1]), value)


def _nothing(_translate, _match, _arguments, _source):
    return lambda m: None


def _proxy_fence(*given):  # one memory, not two ways to it
    return _nothing(*given)


def _vector(begin, count):
    return np.asarray(begin) + np.arange(count)[None]


PLAIN = (_pair32, _move, _zero, _nothing)
PRODUCT = re.compile(
    r"wgmma\.fence[\s\S]*wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16[\s\S]*wgmma\.wait_group"
)
PATTERNS = [
    (r"volatile\(\"fence\.proxy\.async\.shared::cta;", _proxy_fence),
    (r"cvt\.rn\.(?P<short>b?f16)x2\.f32 %0, %1, %2;.*\"f\"\(high\), \"f\"\(low\)", _pair),
    (r"\*\(float2\*\)to = make_float2\(low, high\);", _pair32),
    (r"\*\(uint4\*\)place = \*\(const uint4\*\)source;", _move),
    (r"\*\(uint4\*\)place = make_uint4\(0, 0, 0, 0\);", _zero),
    (r"\(const void\* first, const void\* last\) \{\}", _nothing),
]
product = _warpgroup
