"""AMD's matrix instructions, of whole waves: MFMA of 64 lanes, WMMA of 32.

Which lane and which of its registers hold an element is written here as the guides tell it, next to
the table of the package that says the same from the other end.
"""

import re
from typing import NamedTuple

import ml_dtypes
import numpy as np
from tvm.target.codegen import llvm_get_intrinsic_name

from .memory import EmulationError

_NAME = re.compile(
    r"llvm\.amdgcn\.(?P<family>mfma|wmma)\.(?P<sums>f32|i32)\.(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
    r"\.?(?P<type>f16|bf16|f32|i8|iu8)"
)
_TYPES = {
    "f16": np.dtype("float16"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype("float32"),
    "i8": np.dtype("int8"),
    "iu8": np.dtype("int8"),
}
IGNORED = ("llvm.amdgcn.sched.barrier",)


class Shape(NamedTuple):
    """What a matrix instruction multiplies."""

    family: str
    m: int
    n: int
    k: int

    @property
    def lanes(self):
        return 64 if self.family == "mfma" else 32

    def operand(self, per_lane):
        """Lane and item of each element ``[row, k]`` of A; of B ``[column, k]`` lies the same."""
        i, k = np.indices((self.m, self.k))
        return (i, k) if self.family == "wmma" else (i + self.m * (k // per_lane), k % per_lane)

    @property
    def sums(self):
        """Lane and item of each element ``[row, column]`` of C."""
        i, j = np.indices((self.m, self.n))
        if self.family == "wmma":
            return j + 16 * (i % 2), i // 2
        if self.m == 16:
            return j + 16 * (i // 4), i % 4
        return j + 32 * (i // 4 % 2), i % 4 + 4 * (i // 8)


def intrinsic(translate, node):
    """Make a function of the machine from a call of an intrinsic of LLVM."""
    name = llvm_get_intrinsic_name(int(node.args[0]))
    if name.startswith(IGNORED):
        return lambda m: None
    if name == "llvm.amdgcn.fdot2":
        return _fdot2(*(translate.values(x) for x in node.args[1:4]))
    found = _NAME.match(name)
    if found is None:
        raise EmulationError(f"no such intrinsic is known: {name}")
    shape = Shape(found["family"], *(int(found[x]) for x in "mnk"))
    dtype, arguments = _TYPES[found["type"]], node.args[1:]
    signs = (True, True)
    if found["type"] == "iu8":
        signs = tuple(bool(int(arguments[i])) for i in (0, 2))
        arguments = [arguments[1], arguments[3], arguments[4]]
    a, b, c = (translate.values(x) for x in arguments[:3])

    def run(m):
        if m.per_block % shape.lanes:
            raise EmulationError(f"{name}: a wave of a block is not whole")
        waves = np.ones(m.threads, bool) if m.mask is None else m.mask
        waves = waves.reshape(-1, shape.lanes)
        if (waves.any(1) != waves.all(1)).any():
            raise EmulationError(f"{name}: some threads of a wave take no part")
        active = waves.any(1)
        given = zip((a, b), signs, strict=True)
        sides = [held(shape, x(m), m, dtype, s, active) for x, s in given]
        given = np.broadcast_to(np.asarray(c(m)), (m.threads, np.shape(c(m))[-1]))
        before = given.reshape(-1, shape.lanes, given.shape[1])
        lane, item = shape.sums
        wide = "int64" if dtype.kind == "i" else "float32"
        product = np.matmul(sides[0].astype(wide), sides[1].astype(wide).swapaxes(1, 2))
        made = before.copy()
        made[:, lane, item] = before[:, lane, item] + product.astype(before.dtype)
        return made.reshape(given.shape)

    return run


def _fdot2(a, b, c):
    """Two products of halves and a sum, of each lane alone."""

    def run(m):
        left, right = (np.asarray(x(m)).astype("float32") for x in (a, b))
        return np.asarray(c(m)) + (left * right).sum(-1, keepdims=True, dtype="float32")

    return run


def held(shape, value, machine, dtype, is_signed, active=slice(None)):
    """``[wave, row, k]`` of what lanes hold."""
    own = np.ascontiguousarray(np.broadcast_to(value, (machine.threads, np.shape(value)[-1])))
    own = own.view(dtype if is_signed else "uint8")
    waves = own.reshape(-1, shape.lanes, own.shape[1])
    halves = (_bits(waves[active, lanes]) for lanes in (slice(16), slice(16, 32)))
    if shape.family == "wmma" and not np.equal(*halves).all():
        raise EmulationError("WMMA: the halves of a wave hold different operands")
    lane, item = shape.operand(own.shape[1])
    return waves[:, lane, item]


def _bits(values):
    return np.ascontiguousarray(values).view("uint8")
