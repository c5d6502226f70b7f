"""PTX that kernels use, told by the text of the device function around it, whatever its name is."""

import functools
import math
import re

import numpy as np

from tvm_fusion.schedule.gpu.threads.warp import FULL_MASK
from tvm_fusion.schedule.math.half_math import PREFIX

from . import hopper, moves
from .machine import WARP
from .memory import EmulationError, poison
from .scalar_types import PTX_TYPES, TYPES, multiplied, scalar_type
from .wgmma import K_BYTES

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
    name, source = name.value, _newest(source.value)
    if name.startswith(PREFIX):
        kind = re.sub("_b?float16$", "", name[len(PREFIX) :])
        if kind not in HALF:
            raise EmulationError(f"no such device function is known: {name}")
        values = [translate.of(x) for x in arguments]
        return lambda m: np.asarray(
            HALF[kind](*(np.asarray(v(m), "float64") for v in values))
        ).astype("float32")
    whole = moves.PRODUCT.search(source)
    if whole is not None:
        return moves.product(translate, whole, arguments, source)
    found = _found(source)
    if len(found) != 1 or source.count("asm") != (found[0][0] not in _PLAIN):
        raise EmulationError(f"no such device function is known: {name}: {source}")
    make, match = found[0]
    return make(translate, match, arguments, source)


_BRANCHES = re.compile(
    r"#if __CUDA_ARCH__ >= 800\n(\s*asm\(\"mma\.[\s\S]*?)#else\n([\s\S]*?)#endif\n"
)
_K8 = r"mma\.sync\.aligned\.m16n8k8(?P<types>\S+) (?P<c>\{[^}]*\}), \{%4, %5\}, \{%8\}, (?P=c);"
_UPPER = r"mma\.sync\.aligned\.m16n8k8(?P=types) (?P=c), \{%6, %7\}, \{%9\}, (?P=c);"
_HALVES = rf'{_K8}\\n\\t"\s*"{_UPPER}'
_WHOLE = r"mma.sync.aligned.m16n8k16\g<types> \g<c>, {%4, %5, %6, %7}, {%8, %9}, \g<c>;"


@functools.cache
def _newest(source):
    """Leave what newer devices execute, once it is known that older ones do the same.

    Registers of ``mma.m16n8k16``: two of A and one of B of the lower k, then as many of the upper;
    those of ``mma.m16n8k8`` are the same of its own.
    """
    branches = _BRANCHES.search(source)
    if branches is None:
        return source
    newer, older = branches.groups()
    made, count = re.subn(_HALVES, _WHOLE, older)
    if count != 1 or made != newer:
        raise EmulationError(f"older devices do something else: {source}")
    return source.replace(branches[0], newer)


@functools.cache
def _found(source):
    """What a text is taken for, once for all calls of its function."""
    return [(make, match) for p, make in _PATTERNS if (match := re.search(p, source))]


def _copy(translate, match, arguments, _source):
    to, origin = (translate.pointer(x) for x in arguments[:2])
    inside = translate.of(arguments[2]) if len(arguments) > 2 else lambda m: True

    def run(m):
        (target, at), (memory, begin) = to(m), origin(m)
        target, at = _as(memory.data.dtype, target, at)
        count = int(match[1]) // memory.item
        if not m.active().size:
            return
        place, threads = target.vector(at, count)
        is_inside = np.broadcast_to(inside(m), (m.threads, 1))
        with m.only(is_inside):  # zeros are copied from anywhere
            memory.vector(begin, count)
            value = memory.read(_vector(begin, count))
        value = np.where(is_inside, value, np.zeros(1, value.dtype))
        if m.mask is not None:
            place, threads, value = (x[m.mask] for x in (place, threads, value))
        m.copy(target, place, threads, value)

    return run


def _as(dtype, memory, at):
    """Memory as numbers of another type, and the place of one that is there."""
    return memory.viewed(dtype), at * memory.item // dtype.itemsize


def _load_shared(translate, match, arguments, source):
    """A vector of shared memory into registers, or back, as the types of the numbers have it."""
    to, origin = (translate.pointer(x) for x in arguments)
    size = {"unsigned": 4, "uint2": 8, "uint4": 16}[match[1]]
    is_store = "_store_" in source

    def run(m):
        (target, at), (memory, begin) = to(m), origin(m)
        registers = memory if is_store else target
        count = size // registers.data.dtype.itemsize
        if is_store:
            target, at = _as(registers.data.dtype, target, at)
            target.vector(at, count)
            target.write(_vector(at, count), memory.read(slice(int(begin), int(begin) + count)))
        else:
            memory, begin = _as(registers.data.dtype, memory, begin)
            memory.vector(begin, count)
            target.write(slice(int(at), int(at) + count), memory.read(_vector(begin, count)))

    return run


def _load_cluster(translate, match, arguments, _source):
    """``ld.shared::cluster`` of the same place of another block."""
    to, origin = (translate.pointer(x) for x in arguments[:2])
    other, words = translate.of(arguments[2]), int(match[1] or 1)

    def run(m):
        (target, at), (memory, begin) = to(m), origin(m)
        memory, begin = _as(target.data.dtype, memory, begin)
        count = 4 * words // memory.item
        memory.vector(begin, count)
        rank = np.broadcast_to(other(m), (m.threads, 1))
        if rank.min() < 0 or rank.max() >= m.cluster:
            raise EmulationError("no such block is in the cluster")
        value = memory.read_remote(_vector(begin, count), rank)
        target.write(slice(int(at), int(at) + count), value)

    return run


def _cluster_barrier(_translate, _match, _arguments, _source):
    return lambda m: m.cluster_barrier()


def _load_matrices(translate, match, arguments, _source):
    """``ldmatrix``: lanes 8 * i and on give the rows of matrix i; a thread gets two elements."""
    to, origin = (translate.pointer(x) for x in arguments)
    count = int(match[1])

    def run(m):
        m.whole(m.warp, "warp")
        if m.per_block % WARP or count != 4:
            raise EmulationError("ldmatrix of a warp that is not whole, or of other than 4")
        (target, at), (memory, begin) = to(m), origin(m)
        item = target.data.dtype.itemsize
        memory, begin = _as(target.data.dtype, memory, begin)
        memory.vector(begin, 16 // item)
        rows = memory.read(_vector(begin, 16 // item)).reshape(-1, count, 8, 16 // item)
        if match[2]:
            if item != 2:
                raise EmulationError("ldmatrix transposes elements of two bytes")
            rows = rows.transpose(0, 1, 3, 2)
        each = 4 // item
        own = rows.reshape(-1, count, WARP, each).transpose(0, 2, 1, 3)
        own = own.reshape(m.threads, each * count)
        target.write(slice(int(at), int(at) + each * count), own)

    return run


def _block_barrier(_translate, _match, _arguments, _source):
    return lambda m: m.block_barrier()


def _commit(_translate, _match, _arguments, _source):
    return lambda m: m.commit()


def _wait(_translate, match, _arguments, source):
    pending = int(match[1] or 0)
    is_warp_barrier, is_block_barrier = (f"__sync{of}();" in source for of in ("warp", "threads"))

    def run(m):
        m.wait(pending)
        if is_warp_barrier:
            m.warp_barrier()
        if is_block_barrier:
            m.block_barrier()

    return run


def _warp_barrier(_translate, _match, _arguments, _source):
    return lambda m: m.warp_barrier()


def _load_words(translate, _match, arguments, _source):
    """Five aligned words around eight elements at any address, as ten elements; zeros beyond."""
    to, origin = (translate.pointer(x) for x in arguments[:2])
    count = translate.of(arguments[2])

    def run(m):
        (target, at), (memory, begin) = to(m), origin(m)
        begin = np.broadcast_to(np.reshape(begin, (-1, 1)), (m.threads, 1))
        lane = np.arange(10)[None] - begin % 2
        many = np.broadcast_to(count(m), (m.threads, 1))
        # The word that the first element is the upper half of is read if that one exists.
        exists = (lane < many) & (lane < 8) & (many > 0)
        value = memory.read(np.where(exists, begin + lane, begin))
        target.write(slice(int(at), int(at) + 10), np.where(exists, value, value.dtype.type(0)))

    return run


def _shift_words(translate, _match, arguments, _source):
    to, held, origin = (translate.pointer(x) for x in arguments)

    def run(m):
        (target, at), (words, first), (_, begin) = to(m), held(m), origin(m)
        odd = np.broadcast_to(np.reshape(begin, (-1, 1)), (m.threads, 1)) % 2
        place = int(first) + odd + np.arange(8)[None]
        target.write(slice(int(at), int(at) + 8), words.read(place))

    return run


def _read(translate, _match, arguments, _source):
    to, origin = (translate.pointer(x) for x in arguments)

    def run(m):
        (target, at), (memory, begin) = to(m), origin(m)
        count = 16 // memory.item
        memory.vector(begin, count)
        target.write(slice(int(at), int(at) + count), memory.read(_vector(begin, count)))

    return run


def _write(translate, match, arguments, _source):
    to, origin = (translate.pointer(x) for x in arguments)

    def run(m):
        (memory, begin), (held, at) = to(m), origin(m)
        count = 4 * int(match[1]) // memory.item
        memory.vector(begin, count)
        memory.write(_vector(begin, count), held.read(slice(int(at), int(at) + count)))

    return run


def _read_or_zero(translate, match, arguments, _source):
    """A vector of global memory into registers under a condition, zeros otherwise."""
    to, origin = (translate.pointer(x) for x in arguments[:2])
    size, inside = {"unsigned": 4, "uint2": 8, "uint4": 16}[match[1]], translate.of(arguments[2])

    def run(m):
        (target, at), (memory, begin) = to(m), origin(m)
        count = size // memory.item
        is_inside = np.broadcast_to(inside(m), (m.threads, 1))
        with m.only(is_inside):
            memory.vector(begin, count)
            value = memory.read(_vector(begin, count))
        value = np.where(is_inside, value, np.zeros(1, value.dtype))
        target.write(slice(int(at), int(at) + count), value)

    return run


def _packed(translate, match, arguments, _source):
    """Words stay as they are: two half-type numbers each, in registers."""
    place = translate.pointer(arguments[0])

    def run(m):
        registers, at = place(m)
        last = int(at) + int(match[1]) * 4 // registers.data.itemsize
        if registers.data.itemsize != 2 or int(at) % 2 or last > registers.data.shape[1]:
            raise EmulationError(f"{registers.name}: no whole words of half-type numbers")

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
    """``mma.m16n8`` of 32 bytes of k of PTX's manual, by groupID and threadID_in_group."""
    k, sums = int(match[1]), {"f32": "float32", "s32": "int32"}[match[2]]
    dtypes = [scalar_type(PTX_TYPES[match[i]]) for i in (3, 4)]
    is_integer = dtypes[0].kind in "iu"
    if any(k * d.itemsize != K_BYTES for d in dtypes) or (sums == "int32") != is_integer:
        raise EmulationError(f"there is no {match[0]}")
    if len({*dtypes}) > 1 and dtypes[0].itemsize != 1:
        raise EmulationError(f"A and B are {dtypes}")
    each = k // 8  # numbers of a word
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

        def words(parts, dtype):
            vectors = []
            for argument, word in parts:
                memory, at = found[argument]
                count = 4 // memory.data.dtype.itemsize
                value = memory.read(slice(int(at) + word * count, int(at) + (word + 1) * count))
                value = np.ascontiguousarray(value).view(dtype)
                vectors.append(multiplied(value).reshape(-1, 8, 4 * each))
            return vectors

        warps, half = m.threads // WARP, k // 2
        wide = "int64" if is_integer else "float32"
        left, right = np.empty((warps, 16, k), wide), np.empty((warps, k, 8), wide)
        for i, part in enumerate(words(a, dtypes[0])):
            left[:, i % 2 * 8 : i % 2 * 8 + 8, i // 2 * half : i // 2 * half + half] = part
        for i, part in enumerate(words(b, dtypes[1])):
            right[:, i * half : i * half + half] = part.transpose(0, 2, 1)
        product = (left @ right).astype(sums)  # integers wrap around
        for i, (argument, word) in enumerate(d):
            memory, at = found[argument]
            if memory.data.dtype != sums:
                raise EmulationError(f"{memory.name}: accumulators of another type")
            own = product[:, i // 2 * 8 : i // 2 * 8 + 8].reshape(-1, 8, 4, 2)[..., i % 2]
            own = own.reshape(m.threads, 1)
            place = int(at) + word
            memory.write(place, memory.read(place) + own)

    return run


def _multiply_split(translate, match, arguments, source):
    """Three ``mma.m16n8k8`` of float32 that are split into two tfloat32 each."""
    split = re.sub(r"\s+", "", source)
    for name, count in (("x", 4), ("z", 2)):
        for i in range(count):
            own, hi, lo = (f"{name}{part}[{i}]" for part in ("", "_hi", "_lo"))
            rest = f"__uint_as_float({own})-__uint_as_float({hi})"
            expected = f"{hi}={own}&0xffffe000u;{lo}=__float_as_uint({rest})+0x1000u;"
            if expected not in split:
                raise EmulationError(f"operands are not split as {expected}")
    groups = [re.findall(r"%(\d+)", g) for g in re.findall(r"\{([%\d, ]+)\}", source)]
    texts = re.findall(r'"\+?[rf]"\(([^()]+)\)', source)
    found = [[texts[int(i)] for i in g] for g in groups]

    def words(name, count):
        return [f"{name}[{i}]" for i in range(count)]

    def product(total, a, b):
        return [words(total, 4), words(f"x_{a}", 4), words(f"z_{b}", 2), words(total, 4)]

    products = [("small", "lo", "hi"), ("small", "hi", "lo"), ("c", "hi", "hi")]
    if sorted(found) != sorted(g for p in products for g in product(*p)):
        raise EmulationError("registers are not those of three products")
    pointers = [translate.pointer(x) for x in arguments]

    def run(m):
        m.whole(m.warp, "warp")
        totals, frags = [p(m) for p in pointers[:2]], [p(m) for p in pointers[2:]]

        def values(frag, count):
            memory, at = frag
            bits = np.ascontiguousarray(memory.read(slice(int(at), int(at) + count)))
            whole = bits.view("float32")
            hi = multiplied(whole)
            rounded = np.ascontiguousarray(whole - hi).view("uint32") + np.uint32(0x1000)
            return hi.reshape(-1, 8, 4, count), multiplied(rounded.view("float32")).reshape(
                -1, 8, 4, count
            )

        def rows(x):  # [warp, groupID, k, register] of A: rows and their upper halves
            low, high = (np.concatenate([x[..., i], x[..., i + 2]], 2) for i in (0, 1))
            return np.concatenate([low, high], 1)

        def columns(x):
            return np.concatenate([x[..., 0], x[..., 1]], 2).transpose(0, 2, 1)

        a, b = values(frags[0], 4), values(frags[1], 2)
        a_hi, a_lo = map(rows, a)
        b_hi, b_lo = map(columns, b)
        sums = a_hi @ b_hi, a_lo @ b_hi + a_hi @ b_lo
        for (memory, at), total in zip(totals, sums, strict=True):
            for i in range(4):
                own = total[:, i // 2 * 8 : i // 2 * 8 + 8].reshape(-1, 8, 4, 2)[..., i % 2]
                place = int(at) + i
                memory.write(place, memory.read(place) + own.reshape(m.threads, 1))

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


def _byte_perm(translate, _match, arguments, _source):
    """Four bytes of the eight of two words."""
    a, b, selector = (translate.of(x) for x in arguments)

    def run(m):
        words = [np.asarray(x(m), "uint64") for x in (a, b, selector)]
        both, made = words[0] | words[1] << np.uint64(32), np.uint64(0)
        for byte in range(4):
            chosen = words[2] >> np.uint64(4 * byte) & np.uint64(7)
            made = made | (both >> 8 * chosen & np.uint64(255)) << np.uint64(8 * byte)
        return made.astype("uint32")

    return run


def _twice(translate, _match, arguments, _source):
    """A number of a half type in both halves of a word."""
    number = translate.of(arguments[0])

    def run(m):
        bits = np.ascontiguousarray(number(m)).view("uint16").astype("uint32")
        return bits << np.uint32(16) | bits

    return run


def _widen(translate, _match, arguments, _source):
    value = translate.of(arguments[0])
    return lambda m: np.asarray(value(m)).astype("float32")


def _uniform(translate, _match, arguments, _source):
    value = translate.of(arguments[0])
    return lambda m: shuffle("", m, FULL_MASK, value(m), 0, WARP)


def _sum_of_lanes(translate, match, arguments, _source):
    """A butterfly of ``__shfl_xor_sync`` among some adjacent lanes, which all take part."""
    lanes, value = int(match[1]), translate.of(arguments[0])

    def run(m):
        m.whole(m.numbers // lanes, f"group of {lanes} lanes")
        total = np.broadcast_to(value(m), (m.threads, 1)).reshape(-1, lanes)
        distance = 1
        while distance < lanes:
            total = total + total[:, np.arange(lanes) ^ distance]
            distance *= 2
        return total.reshape(m.threads, 1)

    return run


def _exp2(translate, _match, arguments, _source):
    """``ex2.approx.ftz``, behind ``fma`` or not: results that are denormal are 0."""
    values = [translate.of(x) for x in arguments]

    def run(m):
        x, *fma = (np.asarray(v(m), "float32") for v in values)
        if fma:
            x = (x.astype("float64") * fma[0] + fma[1]).astype("float32")
        result = np.exp2(x)
        return np.where(result < np.finfo("float32").tiny, np.float32(0), result)

    return run


def _any(translate, _match, arguments, _source):
    """``__any_sync`` of all threads of each warp."""
    value = translate.of(arguments[0])

    def run(m):
        m.whole(m.warp, "warp")
        given = np.broadcast_to(value(m), (m.threads, 1))[:, 0].astype(bool)
        found = np.zeros(m.warp.max() + 1, bool)
        np.logical_or.at(found, m.warp, given)
        return found[m.warp][:, None]

    return run


_PLAIN = (
    _sum_of_lanes,
    _warp_barrier,
    _load_words,
    _read_or_zero,
    _shift_words,
    _block_barrier,
    _load_shared,
    _uniform,
    _any,
    *hopper.PLAIN,
    *moves.PLAIN,
)
_PATTERNS = [
    (r"keep_packed_(\d+)\(void\* row\)[\s\S]*asm\(\"// packed\" : [^:]*\);", _packed),
    (r"cp\.async\.c[ag]\.shared\.global\S* \[%0\], \[%1\], (\d+)(?:, %2)?;", _copy),
    (r"cp\.async\.commit_group;", _commit),
    (r"cp\.async\.wait_(?:all|group (\d+));", _wait),
    (r"^(?:(?!asm)[\s\S])*\{\s*__syncwarp\(\);\s*\}\s*$", _warp_barrier),
    (r"^(?:(?!asm)[\s\S])*\{\s*__syncthreads\(\);\s*\}\s*$", _block_barrier),
    (r"\*\((?:const )?(unsigned|uint2|uint4)\*\)(?:to|from)\b(?: =|;)(?![\s\S]*asm)", _load_shared),
    (
        r"barrier\.cluster\.arrive\.release\.aligned; barrier\.cluster\.wait\.acquire",
        _cluster_barrier,
    ),
    (r"ld\.shared::cluster(?:\.v(\d))?\.u32 ", _load_cluster),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?\.shared\.b16 ", _load_matrices),
    (
        r"^(?![\s\S]*_hi\[)[\s\S]*mma\.sync\.aligned\.m16n8k(\d+)\.row\.col\.(f32|s32)"
        rf"\.({TYPES})\.({TYPES})\.\2",
        _multiply,
    ),
    (r"_hi\[[\s\S]*mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32", _multiply_split),
    (r"movmatrix\.sync\.aligned\.m8n8\.trans\.b16 %0, %1;", _transpose),
    (r"ld\.global\.L1::no_allocate\.v4\.u32 \{%0, %1, %2, %3\}, \[%4\];", _read),
    (r"st\.global\.cs\.v(\d)\.u32 \[%0\], \{%1, %2", _write),
    (r"if \(is_loaded\) value = \*\(const (unsigned|uint2|uint4)\*\)source;", _read_or_zero),
    (r"first \+ 1 < count && first < 7\) word\[i\] = words\[i\];", _load_words),
    (r"__funnelshift_r\(word\[i\], word\[i \+ 1\], 16 \* odd\);", _shift_words),
    (r"lop3\.b32 %0, %1, %2, %3, (\w+);", _table),
    (r"fma\.rn\.(f16|bf16)x2 %0, %1, %2, %3;", _pairs),
    (r"prmt\.b32 %0, %1, %2, %3;", _byte_perm),
    (r"mov\.b32 %0, \{%1, %1\};", _twice),
    (r"mov\.b32 %0, \{%1, %2\};.*low.*x", _widen),
    (r"return __shfl_sync\(0xffffffffu, \w+, 0\);", _uniform),
    (r"i < (\d+); i \*= 2\) x \+= __shfl_xor_sync\(mask, x, i\);", _sum_of_lanes),
    (r"return __any_sync\(0xffffffffu, \w+\);", _any),
    (r"ex2\.approx\.ftz\.f32 %0, %1;", _exp2),
    (r"fma\.rn\.f32 t, %1, %2, %3; ex2\.approx\.ftz\.f32 %0, t;", _exp2),
    *hopper.PATTERNS,
    *moves.PATTERNS,
]
