"""PTX of Hopper's warp-specialized kernels, told by its text: mbarriers, TMA, wgmma."""

import re

import numpy as np

from . import tma
from .memory import EmulationError
from .scalar_types import PTX_TYPES, TYPES, scalar_type
from .wgmma import K_BYTES

USED = re.compile(r"mbarrier\.|wgmma\.")  # of the text of what needs the state of this file
WAITS = re.compile(r"mbarrier\.(?:try|test)_wait")


def _with_bar(do):
    """Of a function of the machine's mbarriers, an mbarrier's place, and numbers."""

    def make(translate, _match, arguments, _source):
        bar, numbers = translate.pointer(arguments[0]), [translate.of(x) for x in arguments[1:]]

        def run(m):
            if m.active().size:
                do(m.mbarriers, *bar(m), *(number(m) for number in numbers))

        return run

    return make


def _fence_init(_translate, _match, _arguments, _source):
    return lambda m: m.mbarriers.fence()


def _load(translate, match, arguments, _source):
    rank = int(match[1])
    to, bar = translate.pointer(arguments[0]), translate.pointer(arguments[2])
    tensor_map, *places = (translate.of(x) for x in (arguments[1], *arguments[3:]))
    if len(places) != rank:
        raise EmulationError(f"coordinates of a box of rank {rank}: {len(places)}")

    def run(m):
        found = tensor_map(m)
        if len(found.box) != rank:
            raise EmulationError("a box of another rank than its tensor map")
        tma.load(m, *to(m), found, [place(m) for place in places], bar(m))

    return run


def _descriptor(translate, match, arguments, _source):
    """A matrix descriptor: address, leading and stride offsets, and how it is swizzled."""
    tile = translate.pointer(arguments[0])
    leading, stride, mode = (int(match[i]) for i in (1, 2, 3))
    rest = np.uint64(leading << 16 | stride << 32 | mode << 62)

    def run(m):
        memory, at = tile(m)
        place = memory.base + np.asarray(at) * memory.item
        active = np.broadcast_to(place, (m.threads, 1))[m.active()]
        if (active % 16).any():
            raise EmulationError(f"{memory.name}: an operand's address is no multiple of 16")
        return ((place & 0x3FFFF) >> 4).astype("uint64") | rest

    return run


def _multiply(translate, match, arguments, _source):
    n, k, sums = int(match[1]), int(match[2]), match[3]
    dtypes = [scalar_type(PTX_TYPES[match[i]]) for i in (4, 5)]
    registers = [int(x) for x in re.findall(r"%(\d+)", match[6])]
    modifiers = re.findall(r"\d", match[7])
    is_half, is_integer = dtypes[0].itemsize == 2, dtypes[0].kind in "iu"
    if registers != list(range(n // 2)) or n % 8 or n > 256 or sums != ("f32", "s32")[is_integer]:
        raise EmulationError("registers are not those of wgmma.m64nN")
    if any(k * dtype.itemsize != K_BYTES for dtype in dtypes) or (is_integer and n > 24 and n % 16):
        raise EmulationError(f"there is no wgmma.m64n{n}k{k} of {dtypes}")
    expected = 0 if is_integer else 4 if is_half else 2
    if len(modifiers) != expected or modifiers[:2] != ["1", "1"][:expected]:
        raise EmulationError(f"operands are not those of wgmma of {dtypes}: {match[7]}")
    if len({*dtypes}) > 1 and dtypes[0].itemsize != 1:
        raise EmulationError(f"A and B are {dtypes}")
    acc = translate.accumulators(arguments[0])
    a, b, is_added = (translate.of(x) for x in arguments[1:])
    is_k_contiguous = [x == "0" for x in modifiers[2:] or "00"]

    def run(m):
        target, at = acc(m)
        if target.data.dtype != {"f32": "float32", "s32": "int32"}[sums]:
            raise EmulationError(f"{target.name}: accumulators of another type")
        descriptors = zip((a(m), b(m)), is_k_contiguous, dtypes, strict=True)
        m.products.multiply(target, int(at), n, list(descriptors), is_added(m))

    return run


def _transpose_quad(translate, _match, arguments, _source):
    """Two columns of each of four tiles in four lanes become eight columns of one tile."""
    to, *tiles = (translate.pointer(x) for x in arguments)
    tile = np.arange(8) // 2  # of each sum; the first of adjacent ones is given alone

    def run(m):
        m.whole(m.numbers // 32, "warp")
        (target, at), origins = to(m), [origin(m) for origin in tiles]
        memory, size = origins[0][0], 4 if len(origins) == 1 else 0
        begins = [np.broadcast_to(begin, m.threads) for _, begin in origins] * (5 - len(origins))
        own = memory.read(np.stack(begins, -1)[:, tile] + tile * size + np.arange(8) % 2)
        turned = np.broadcast_to(own, (m.threads, 8)).reshape(-1, 4, 4, 2).transpose(0, 2, 1, 3)
        target.write(np.asarray(at) + np.arange(8)[None], turned.reshape(m.threads, 8))

    return run


def _nothing(_translate, _match, _arguments, _source):
    return lambda m: None


def _fence(_translate, _match, _arguments, _source):
    return lambda m: m.products.fence()


def _commit(_translate, _match, _arguments, _source):
    return lambda m: m.products.commit()


def _wait(_translate, match, _arguments, _source):
    return lambda m: m.products.wait(int(match[1]))


def _warpgroup_barrier(_translate, _match, _arguments, _source):
    return lambda m: m.warpgroup_barrier()


def _registers(_translate, match, _arguments, _source):
    count = int(match[1])
    if count % 8 or not 24 <= count <= 256:
        raise EmulationError(f"setmaxnreg of {count}")
    return lambda m: m.products.whole()


PATTERNS = [
    (
        r"mbarrier\.init\.shared::cta\.b64 \[%0\], %1;",
        _with_bar(lambda bars, memory, at, count: bars.initialize(memory, at, count)),
    ),
    (
        r"mbarrier\.arrive(?:\.expect_tx)?\.shared::cta\.b64 _, \[%0\](?:, %1)?;",
        _with_bar(lambda bars, memory, at, *count: bars.arrive(memory, at, *count)),
    ),
    (
        r"mbarrier\.try_wait\.parity\.shared::cta\.b64 done, \[%0\], %1; @!done bra again;",
        _with_bar(lambda bars, memory, at, parity: bars.wait(memory, at, parity)),
    ),
    (r"fence\.mbarrier_init\.release\.cluster;", _fence_init),
    (
        r"cp\.async\.bulk\.tensor\.(\d)d\.shared::cluster\.global\.tile"
        r'[\s"]*\.mbarrier::complete_tx::bytes \[%0\], \[%1, \{[%\d, ]+\}\], \[%2\];',
        _load,
    ),
    (
        r"\(\(place & 0x3FFFF\) >> 4\) \| \((\d+)ull << 16\) \| \((\d+)ull << 32\)"
        r"\s*\| \((\d)ull << 62\);",
        _descriptor,
    ),
    (
        rf"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(f32|s32)\.({TYPES})\.({TYPES}) "
        r'[\s"]*\{([%\d, ]+)\}, %\d+, %\d+, [\s"]*is_added((?:, [01])*);',
        _multiply,
    ),
    (r"prefetch\.tensormap \[%0\];", _nothing),
    (
        r"__shfl_xor_sync\(0xffffffffu, odd \? v\[low\] : v\[low \+ 2\], 1\);[\s\S]*"
        r"__shfl_xor_sync\(0xffffffffu, high \? w\[i\] : w\[i \+ 4\], 2\);",
        _transpose_quad,
    ),
    (r"bar\.sync %0, 128;", _warpgroup_barrier),
    (r"wgmma\.fence\.sync\.aligned;", _fence),
    (r"wgmma\.commit_group\.sync\.aligned;", _commit),
    (r"wgmma\.wait_group\.sync\.aligned (\d+);", _wait),
    (r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32 (\d+);", _registers),
]
PLAIN = (_descriptor, _transpose_quad)  # without assembly
