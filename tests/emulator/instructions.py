"""PTX that kernels use, told by the text of the device function around it, whatever its name is."""

from __future__ import annotations

import math
import re

import numpy as np

from tvm_fusion.schedule.gpu.warp import FULL_MASK
from tvm_fusion.schedule.half_functions import PREFIX

from .machine import WARP
from .memory import EmulationError, Registers, poison

_ERF = np.frompyfunc(math.erf, 1, 1)


def _cdf(x):
    return 0.5 * (1 + _ERF(np.asarray(x / np.sqrt(2))).astype("float64"))


HALF = {  # functions of float32
    "exp": np.exp,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "erf": lambda x: _ERF(np.asarray(x)).astype("float64"),
    "normal_cdf": _cdf,
    "gelu": lambda x: np.where(np.isneginf(x), 0, x * _cdf(x)),
    "one_plus_tanh": lambda x: 1 + np.tanh(x),
    "div": np.divide,
}


def shuffle(kind, m, mask, value, lane, width):
    """Values of other threads of a warp; of one that is not there or takes no part, poison."""
    if np.all(mask == FULL_MASK) and m.per_block % WARP == 0:
        m.whole(m.warp, "warp")
    value = np.broadcast_to(value, (m.threads, np.shape(value)[1] if np.ndim(value) else 1))
    lane, own = np.broadcast_to(lane, (m.threads, 1))[:, 0], m.inner % WARP % width
    asked = {"": lane % width, "_up": own - lane, "_down": own + lane}[kind]
    asked = np.where((asked < 0) | (asked >= width), own, asked)
    source = m.numbers - own + asked
    is_there = source < m.threads
    source = np.where(is_there, source, 0)
    is_there &= m.warp[source] == m.warp
    if m.mask is not None:
        is_there &= m.mask[source]
    return np.where(is_there[:, None], value[source], poison(1, value.dtype))


def device_function(translate, node):
    """Make a function of the machine from a call of a function that is written in CUDA."""
    name, *arguments, source = node.args
    name, source = name.value, source.value
    if name.startswith(PREFIX):
        kind = re.sub("_b?float16$", "", name[len(PREFIX) :])
        if kind not in HALF:
            raise EmulationError(f"no such device function is known: {name}")
        values = [translate.of(x) for x in arguments]
        return lambda m: np.asarray(
            HALF[kind](*(np.asarray(v(m), "float64") for v in values))
        ).astype("float32")
    found = [(make, match) for p, make in _PATTERNS if (match := re.search(p, source))]
    if len(found) != 1 or source.count("asm") != (found[0][0] not in _PLAIN):
        raise EmulationError(f"no such device function is known: {name}: {source}")
    make, match = found[0]
    return make(translate, match, arguments, source)


def _copy(translate, match, arguments, source):
    to, origin = (translate.pointer(x) for x in arguments[:2])
    is_copied = translate.of(arguments[2]) if len(arguments) == 3 else None
    if bool(match[2]) != ("is_copied ? 16 : 0;" in source) or bool(match[2]) != bool(is_copied):
        raise EmulationError(f"no such size of a copy is known: {source}")

    def run(m):
        (target, at), (memory, begin) = to(m), origin(m)
        count = int(match[1]) // memory.item
        if not m.active().size:
            return
        place, threads = target.vector(at, count)
        if is_copied is None:
            value = memory.vector(begin, count) and memory.read(_vector(begin, count))
        else:
            given = np.broadcast_to(np.reshape(is_copied(m), (-1, 1)), (m.threads, 1))
            value = np.zeros((m.threads, count), memory.data.dtype)
            with m.only(given) as some:  # nothing is read for zeros
                if some:
                    memory.vector(begin, count)
                    found = memory.read(_vector(begin, count))
                    value = np.where(given, found, value)
        if m.mask is not None:
            place, threads, value = (x[m.mask] for x in (place, threads, value))
        m.copy(target, place, threads, value)

    return run


def _commit(_translate, _match, _arguments, _source):
    return lambda m: m.commit()


def _wait(_translate, match, _arguments, source):
    pending, is_barrier = int(match[1] or 0), "__syncwarp();" in source

    def run(m):
        m.wait(pending)
        if is_barrier:
            m.warp_barrier()

    return run


def _warp_barrier(_translate, _match, _arguments, _source):
    return lambda m: m.warp_barrier()


def _read(translate, _match, arguments, _source):
    to, origin = (translate.pointer(x) for x in arguments)

    def run(m):
        (target, at), (memory, begin) = to(m), origin(m)
        count = 16 // memory.item
        memory.vector(begin, count)
        target.write(slice(int(at), int(at) + count), memory.read(_vector(begin, count)))

    return run


def _vector(begin, count):
    return np.asarray(begin) + np.arange(count)[None]


def _operands(source, names):
    """Words of the arguments that are operands ``%0``, ``%1``, ...: (argument, word) of each."""
    signature = re.search(r"\w+\(([^)]*)\)\s*\{", source)[1]
    parameters = [p.split()[-1].lstrip("*") for p in signature.split(",")]
    alias = dict(re.findall(r"(\w+) = \((?:const )?\w+\*\)(\w+);", source))
    found = []
    for text in re.findall(r'"\+?=?[rf]"\(([^()]+(?:\([^()]*\)\w*)?)\)', source):
        word = re.fullmatch(r"(\w+)\[(\d+)\]", text)
        if word is None:
            raise EmulationError(f"no operand is known as {text}")
        found.append((parameters.index(alias.get(word[1], word[1])), int(word[2])))
    return found


def _multiply(translate, match, arguments, source):
    """``mma.m16n8k16`` of PTX's manual, by groupID and threadID_in_group."""
    pointers = [translate.pointer(x) for x in arguments]
    operands = _operands(source, None)
    groups = [re.findall(r"%(\d+)", g) for g in re.findall(r"\{([%\d, ]+)\}", source)]
    d, a, b, c = ([operands[int(i)] for i in g] for g in groups)
    if [len(x) for x in (d, a, b, c)] != [4, 4, 2, 4] or d != c:
        raise EmulationError("operands are not those of mma.m16n8k16")

    def run(m):
        m.whole(m.warp, "warp")
        if m.per_block % WARP:
            raise EmulationError("a warp is not whole")
        found = [p(m) for p in pointers]

        def words(parts, count):
            vectors = []
            for argument, word in parts:
                memory, at = found[argument]
                value = memory.read(slice(int(at) + word * count, int(at) + (word + 1) * count))
                vectors.append(value.astype("float32").reshape(-1, 8, 4, count))
            return vectors

        warps = m.threads // WARP
        left, right = np.empty((warps, 16, 16), "float32"), np.empty((warps, 16, 8), "float32")
        for i, part in enumerate(words(a, 2)):
            left[:, i % 2 * 8 : i % 2 * 8 + 8, i // 2 * 8 : i // 2 * 8 + 8] = part.reshape(-1, 8, 8)
        for i, part in enumerate(words(b, 2)):
            right[:, i * 8 : i * 8 + 8] = part.reshape(-1, 8, 8).transpose(0, 2, 1)
        product = left @ right
        for i, (argument, word) in enumerate(d):
            memory, at = found[argument]
            own = product[:, i // 2 * 8 : i // 2 * 8 + 8].reshape(-1, 8, 4, 2)[..., i % 2]
            own = own.reshape(m.threads, 1)
            place = int(at) + word
            memory.write(place, memory.read(place) + own)

    return run


def _transpose(translate, _match, arguments, _source):
    """``movmatrix``: rows of four threads with two elements each become columns."""
    to, origin = (translate.pointer(x) for x in arguments)

    def run(m):
        m.whole(m.warp, "warp")
        (target, at), (memory, begin) = to(m), origin(m)
        pair = memory.read(slice(int(begin), int(begin) + 2)).reshape(-1, 8, 8)
        turned = pair.transpose(0, 2, 1).reshape(m.threads, 2)
        target.write(slice(int(at), int(at) + 2), turned)

    return run


def _load_matrices(translate, match, arguments, _source):
    """``ldmatrix.x4``: thread t gives row t % 8 of matrix t // 8, and gets a pair of each."""
    to, origin = (translate.pointer(x) for x in arguments)

    def run(m):
        m.whole(m.warp, "warp")
        if m.per_block % WARP:
            raise EmulationError("a warp is not whole")
        (target, at), (memory, begin) = to(m), origin(m)
        memory.vector(begin, 8)
        if not memory.per_block:
            raise EmulationError(f"{memory.name}: ldmatrix reads shared memory")
        matrices = np.asarray(memory.read(_vector(begin, 8))).reshape(-1, 4, 8, 8)
        if match[1]:
            matrices = matrices.transpose(0, 1, 3, 2)
        pairs = matrices.reshape(-1, 4, WARP, 2).transpose(0, 2, 1, 3).reshape(m.threads, 8)
        target.write(slice(int(at), int(at) + 8), pairs)

    return run


def _warpgroup(translate, match, arguments, source):
    """Chained ``wgmma.m64nNk16`` with A in registers, B described in swizzled shared memory."""
    acc, a, tile = (translate.pointer(x) for x in arguments)
    n, is_transposed = (
        int(match[1]),
        source.split("wgmma.mma_async")[1].split("b, ")[1][9:10] == "1",
    )
    steps = [16 * int(x) for x in re.findall(r"add\.s64 b, %\d+, (\d+);", source)]
    leading = 16 * int(re.search(r"\((\d+)ull << 16\)", source)[1])
    if "64ull << 32" not in source or "1ull << 62" not in source:
        raise EmulationError(f"no such descriptor is known: {source}")
    keeps = "setp.ne.b32 p, 1, 0" in source
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
            # Of each warp: row group or that + 8, k or k + 8, pairs.
            parts = words.astype("float32").reshape(groups, 4, 8, 4, 2, 2, 2)
            left = parts.transpose(0, 1, 4, 2, 5, 3, 6).reshape(groups, 64, 16)
            product = (left @ b).reshape(groups, 4, 2, 8, n // 8, 4, 2)
            total = total + product.transpose(0, 1, 3, 5, 4, 2, 6).reshape(m.threads, n // 2)
        to.write(slice(int(first), int(first) + n // 2), total)

    return run


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


def _table(translate, match, arguments, _source):
    """Any function of three bits: ``lop3``."""
    operands, table = [translate.of(x) for x in arguments], int(match[1], 0)

    def run(m):
        given = [np.asarray(x(m), "uint32") for x in operands]
        total = np.uint32(0)
        for number in range(8):
            if table >> number & 1:
                bits = [x if number >> (2 - i) & 1 else ~x for i, x in enumerate(given)]
                total = total | (bits[0] & bits[1] & bits[2])
        return total

    return run


def _pairs(translate, match, arguments, _source):
    """Multiply and add both halves of words, rounding once."""
    from .expressions import scalar_type

    operands = [translate.of(x) for x in arguments]
    dtype = scalar_type({"f16": "float16", "bf16": "bfloat16"}[match[1]])

    def run(m):
        x, y, z = (
            np.ascontiguousarray(np.atleast_2d(np.asarray(f(m), "uint32"))).view(dtype)
            for f in operands
        )
        exact = x.astype("float64") * y.astype("float64") + z.astype("float64")
        return np.ascontiguousarray(exact.astype(dtype)).view("uint32")

    return run


def _widen(translate, _match, arguments, _source):
    value = translate.of(arguments[0])
    return lambda m: np.asarray(value(m)).astype("float32")


_PLAIN = (_warp_barrier, _pair32, _move, _zero, _nothing)
_PATTERNS = [
    (r"cp\.async\.c[ag]\.shared\.global\S* \[%0\], \[%1\], (\d+)(, %2)?;", _copy),
    (
        r"ldmatrix\.sync\.aligned\.m8n8\.x4(\.trans)?\.shared\.b16 \{%0, %1, %2, %3\}, \[%4\];",
        _load_matrices,
    ),
    (r"^(?![\s\S]*mma\.sync)[\s\S]*wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16", _warpgroup),
    (r"fence\.proxy\.async\.shared::cta;", _proxy_fence),
    (r"cvt\.rn\.(?P<short>b?f16)x2\.f32 %0, %1, %2;.*\"f\"\(high\), \"f\"\(low\)", _pair),
    (r"\*\(float2\*\)to = make_float2\(low, high\);", _pair32),
    (r"\*\(uint4\*\)to = \*\(const uint4\*\)from;", _move),
    (r"\*\(uint4\*\)to = make_uint4\(0, 0, 0, 0\);", _zero),
    (r"\(const void\* first, const void\* last\) \{\}", _nothing),
    (r"cp\.async\.commit_group;", _commit),
    (r"cp\.async\.wait_(?:all|group (\d+));", _wait),
    (r"^(?:(?!asm)[\s\S])*\{\s*__syncwarp\(\);\s*\}\s*$", _warp_barrier),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(f16|bf16)\.\1\.f32", _multiply),
    (r"movmatrix\.sync\.aligned\.m8n8\.trans\.b16 %0, %1;", _transpose),
    (r"ld\.global\.L1::no_allocate\.v4\.u32 \{%0, %1, %2, %3\}, \[%4\];", _read),
    (r"lop3\.b32 %0, %1, %2, %3, (\w+);", _table),
    (r"fma\.rn\.(f16|bf16)x2 %0, %1, %2, %3;", _pairs),
    (r"mov\.b32 %0, \{%1, %2\};.*low.*x", _widen),
]
