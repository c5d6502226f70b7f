"""AMD's matrix cores: MFMA of CDNA, WMMA of RDNA3; dot products (the instruction set guides).

MFMA: a wave of 64 lanes. Of a tile of ``size`` rows lane ``size * group + row`` holds a row of A,
or a column of B, and contiguous k: the groups share them out. C has four rows of a lane contiguous,
then the same of all groups, then the next four.

WMMA: a wave of 32 lanes. Lane ``row`` holds all k of a row of A, or of a column of B, and lane
``row + 16`` a copy, which the hardware needs. C's rows alternate between the halves of the wave.

v_dot: each lane multiplies a word of A and of B, two or four k, and adds to a sum of its own.
"""

from tvm import ir, tirx

from .instruction import Instruction
from .layout import layout

# Eight-bit floating types of CDNA3, and their names in intrinsics.
FLOAT8_TYPES = {"float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "bf8"}
_REGISTER_BITS = 32
FAMILIES = ("mfma", "wmma")
# Of a compute unit, in products of half types.
HALF_FLOP_PER_CLOCK = {"gfx90a": 1024, "gfx942": 2048, "gfx1100": 512}
# That a compute unit reads from L2 in a clock where all do: channels of 128 bytes (CDNA2: 32 of 110
# units, CDNA3: 16 of 38), of 64 (RDNA3: 24 of 96 units).
L2_BYTES_PER_CLOCK = {"gfx90a": 37.0, "gfx942": 54.0, "gfx1100": 16.0}


def multiply(row: Instruction, a: ir.Expr, b: ir.Expr, c: ir.Expr) -> ir.Expr:
    """Emit an instruction: give a lane's part of ``a * b + c``.

    Parameters
    ----------
    row
        One of :data:`AMD`.
    a, b, c
        What a lane holds of each matrix, in the order of the row's registers: a vector, or a scalar
        where that is one element.
    """
    types = [str(x.ty.dtype.with_lanes(1)) for x in (a, b)]
    names = dict(zip("ab", (FLOAT8_TYPES.get(dtype, dtype) for dtype in types), strict=True))
    operands = [_in_registers(row, x) for x in (a, b)]
    if row.family == "mfma":
        # Which blocks of A are broadcast, and which lanes of B: none.
        arguments = [*operands, c, *[tirx.const(0, "int32")] * 3]
    elif row.family == "v_dot":
        arguments = [*operands, c, tirx.const(False, "bool")]  # no clamp
    elif row.kind == "int8":
        signs = [tirx.const(dtype == "int8", "bool") for dtype in types]
        pairs = [x for pair in zip(signs, operands, strict=True) for x in pair]
        arguments = [*pairs, c, tirx.const(False, "bool")]  # sums wrap around
    else:
        arguments = [*operands, c]
    return tirx.call_llvm_pure_intrin(str(c.ty.dtype), row.name.format(**names), *arguments)


def _in_registers(row: Instruction, operand: ir.Expr) -> ir.Expr:
    """Return an operand in the type of LLVM's intrinsic, which has neither bfloat16 nor bytes."""
    dtype = operand.ty.dtype
    if row.kind in ("float32", "tfloat32", "float16"):
        return operand
    if row.kind == "bfloat16":
        return tirx.reinterpret(f"int16x{dtype.lanes}", operand)
    words = dtype.lanes * 8 // _REGISTER_BITS
    if words == 1 or row.family == "mfma":
        return tirx.reinterpret(f"int{_REGISTER_BITS * words}", operand)
    return tirx.reinterpret(f"int{_REGISTER_BITS}x{words}", operand)


def _mfma(size: int, per_lane: int, kind: str, suffix: str, *types: str) -> Instruction:
    """Make a row of tiles of ``size`` rows and columns; a lane has so many k."""
    groups = 64 // size
    k = groups * per_lane
    sums, c_name = ("int32", "i32") if kind == "int8" else ("float32", "f32")
    a = layout([(size, 1, 0), (groups, 0, per_lane)], [(per_lane, 0, 1)])
    c = layout([(size, 0, 1), (groups, 4, 0)], [(4, 1, 0), (size // groups // 4, 4 * groups, 0)])
    name = f"llvm.amdgcn.mfma.{c_name}.{size}x{size}x{k}{suffix}"
    return Instruction("mfma", name, size, size, k, types, types, kind, sums, a, a.transposed, c)


def _wmma(kind: str, suffix: str, *types: str) -> Instruction:
    sums, c_name = ("int32", "i32") if kind == "int8" else ("float32", "f32")
    a = layout([(16, 1, 0), (2, 0, 0)], [(16, 0, 1)])
    c = layout([(16, 0, 1), (2, 1, 0)], [(8, 2, 0)])
    name = f"llvm.amdgcn.wmma.{c_name}.16x16x16.{suffix}"
    return Instruction("wmma", name, 16, 16, 16, types, types, kind, sums, a, a.transposed, c)


def _dot(family: str, k: int, kind: str, name: str, *types: str) -> Instruction:
    """Make a row of a dot product, of one lane."""
    sums = "int32" if kind == "int8" else "float32"
    a, b, c = layout([], [(k, 0, 1)]), layout([], [(k, 1, 0)]), layout([], [(1, 0, 0)])
    name = f"llvm.amdgcn.{name}"
    return Instruction(family, name, 1, 1, k, types, types, kind, sums, a, b, c)


AMD = (
    *(
        instruction
        for size in (16, 32)
        for instruction in (
            _mfma(size, 1, "float32", "f32", "float32"),
            _mfma(size, 4, "float16", "f16", "float16"),
            _mfma(size, 4, "bfloat16", "bf16.1k", "bfloat16"),
            _mfma(size, 4, "int8", "i8", "int8"),  # of CDNA2
            _mfma(size, 8, "int8", ".i8", "int8"),  # of CDNA3, as what follows
            _mfma(size, 2, "tfloat32", ".xf32", "float32"),
            _mfma(size, 8, "float8", ".{a}.{b}", *FLOAT8_TYPES),
        )
    ),
    _wmma("float16", "f16", "float16"),
    _wmma("bfloat16", "bf16", "bfloat16"),
    _wmma("int8", "iu8", "int8", "uint8"),
    _dot("v_dot", 2, "float16", "fdot2", "float16"),
    _dot("v_dot", 4, "int8", "sdot4", "int8"),
    _dot("v_dot_iu8", 4, "int8", "sudot4", "int8", "uint8"),
)
