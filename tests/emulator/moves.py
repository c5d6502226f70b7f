"""Device functions of FlashAttention: moves by address, and products of warpgroups as a whole."""

import re

import numpy as np

from .machine import WARP
from .memory import EmulationError, Registers
from .wgmma import rows_of_fragments


def _warpgroup(translate, match, arguments, source):
    """Chained ``wgmma.m64nNk16`` with A in registers, B described in swizzled shared memory."""
    is_issued = "wgmma.wait_group" not in source
    acc = (translate.accumulators if is_issued else translate.pointer)(arguments[0])
    a, tile = (translate.pointer(x) for x in arguments[1:])
    n, is_transposed = (
        int(match[1]),
        source.split("wgmma.mma_async")[1].split("b, ")[1][9:10] == "1",
    )
    steps = [16 * int(x) for x in re.findall(r"add\.s64 b, %\d+, (\d+);", source)]
    leading = 16 * int(re.search(r"\((\d+)ull << 16\)", source)[1])
    if "64ull << 32" not in source or "1ull << 62" not in source:
        raise EmulationError(f"no such descriptor is known: {source}")
    keeps = "setp.ne.b32 p, 1, 0" in source
    if is_issued:
        layout = is_transposed, leading, steps
        return _issued(acc, a, tile, n, layout, keeps)
    k, column = np.divmod(np.arange(16 * n), n)
    if is_transposed:  # rows of 64 elements along n
        offset = column // 64 * leading + k // 8 * 1024 + k % 8 * 128 + column % 64 * 2
    else:
        offset = column // 8 * 1024 + column % 8 * 128 + k * 2

    def run(m):
        m.whole(m.warp // 4, "warpgroup")
        if m.per_block % (4 * WARP):
            raise EmulationError("a warpgroup is not whole")
        (to, first), (held, begin), (memory, at) = acc(m), a(m), tile(m)
        groups = m.threads // (4 * WARP)
        total = to.read(slice(int(first), int(first) + n // 2)).astype("float32")
        total = total if keeps else np.zeros_like(total)
        at = np.broadcast_to(np.reshape(at, (-1, 1)), (m.threads, 1)).astype("int64") * 2
        for number, step in enumerate(steps):
            place = at + step + offset[None]
            place = place ^ (place >> 7 & 7) << 4
            b = memory.read(place // 2).reshape(groups, 4 * WARP, 16, n)[:, 0].astype("float32")
            words = held.read(slice(int(begin) + 8 * number, int(begin) + 8 * number + 8))
            product = (rows_of_fragments(words) @ b).reshape(groups, 4, 2, 8, n // 8, 4, 2)
            total = total + product.transpose(0, 1, 3, 5, 4, 2, 6).reshape(m.threads, n // 2)
        to.write(slice(int(first), int(first) + n // 2), total)

    return run


def _issued(acc, a, tile, n, layout, keeps):
    """The same without a wait, as a group of products."""
    is_transposed, leading, steps = layout
    rest = np.uint64(leading >> 4 << 16 | 64 << 32 | 1 << 62)

    def run(m):
        m.products.fence()
        (to, first), (held, begin), (memory, at) = acc(m), a(m), tile(m)
        place = (np.asarray(at) * memory.item + memory.base & 0x3FFFF) >> 4
        for number, step in enumerate(steps):
            b = (place + (step >> 4)).astype("uint64") | rest, not is_transposed, held.data.dtype
            words = slice(int(begin) + 8 * number, int(begin) + 8 * number + 8)
            is_added = np.array(keeps or number > 0)
            m.products.multiply_fragments(to, int(first), n, (held, words), b, is_added)
        m.products.commit()

    return run


def _pair(translate, match, arguments, _source):
    """Store two float32, or both rounded to a half type, as neighbours."""
    from .scalar_types import scalar_type

    to, values = translate.pointer(arguments[0]), [translate.of(x) for x in arguments[1:]]
    name = {"f16": "float16", "bf16": "bfloat16", None: "float32"}[match.groupdict().get("short")]

    def run(m):
        target, at = to(m)
        parts = [np.broadcast_to(np.reshape(v(m), (-1, 1)), (m.threads, 1)) for v in values]
        value = np.concatenate(parts, 1).astype(scalar_type(name))
        _write_bits(target, at, value)

    return run


def _half_pair(translate, _match, arguments, source):
    match = re.fullmatch("(?P<short>f16)", "f16")
    return _pair(translate, match, arguments, source)


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


def _keep(translate, match, arguments, _source):
    """Zeros in place of some words, of the threads for which a condition does not hold."""
    place, condition = translate.pointer(arguments[0]), translate.of(arguments[1])
    size = 4 * int(match[1])

    def run(m):
        target, at = place(m)
        count = size // target.data.dtype.itemsize
        held = np.broadcast_to(target.read(_place(at, count)), (m.threads, count))
        keep = np.broadcast_to(np.reshape(condition(m), (-1, 1)), (m.threads, 1))
        _write_bits(target, at, np.where(keep, held, np.zeros((), held.dtype)))

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


def _proxy_fence(_translate, _match, _arguments, _source):
    def run(m):
        for memory in m.memories:
            if memory.chunks is not None:
                memory.chunks.fence(m.active())

    return run


def _vector(begin, count):
    return np.asarray(begin) + np.arange(count)[None]


PLAIN = (_pair32, _half_pair, _move, _zero, _keep, _nothing)
PRODUCT = re.compile(
    r"wgmma\.fence[\s\S]*wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16[\s\S]*wgmma\.commit_group"
)
PATTERNS = [
    (r"volatile\(\"fence\.proxy\.async\.shared::cta;", _proxy_fence),
    (r"cvt\.rn\.(?P<short>b?f16)x2\.f32 %0, %1, %2;.*\"f\"\(high\), \"f\"\(low\)", _pair),
    (r"\*\(__half2\*\)to = __floats2half2_rn\(low, high\);", _half_pair),
    (r"\*\(float2\*\)to = make_float2\(low, high\);", _pair32),
    (r"\*\(uint4\*\)place = \*\(const uint4\*\)source;", _move),
    (r"\*\(uint4\*\)place = make_uint4\(0, 0, 0, 0\);", _zero),
    (r"i < (\d+); \+\+i\) word\[i\] = keep \? word\[i\] : 0u;", _keep),
    (r"\(const void\* first, const void\* last\) \{\}", _nothing),
]
product = _warpgroup
