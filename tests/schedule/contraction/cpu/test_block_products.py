"""Products with weights of 2, 4 and 8 bits in blocks: one kernel, at any number of rows."""

import numpy as np
import pytest
import tvm
from assembly import inner_block
from group_kernels import CPU, built, group, tensor
from tvm import relax, tirx

from tvm_fusion.core.contract.template import Claim
from tvm_fusion.device import parse
from tvm_fusion.frontend.operators.packed_weights import RelaxOperators, unpack_array, unpacked
from tvm_fusion.schedule.contraction.cpu.blocks.bytes import ByteBlocks
from tvm_fusion.schedule.contraction.cpu.blocks.floats import FloatBlocks
from tvm_fusion.schedule.contraction.cpu.config import FEW
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction
from tvm_fusion.schedule.instructions.table import find
from tvm_fusion.schedule.stage.install import Packer

pytestmark = pytest.mark.slow_beyond(2)

op = relax.op
AVX2 = parse("cpu:haswell")
ROWS = (1, 3, 7, 30, 70)


def rows_of_int8(emit, x, size):
    """Give numbers of int8 and their scales, as the graph reads them, and the floats of both."""
    numbers, scales = x
    terms = int(numbers.ty.shape[1])
    wide = emit(op.astype(emit(op.reshape(numbers, [-1, terms // size, size])), "float32"))
    wide = emit(op.multiply(wide, emit(op.expand_dims(scales, 2))))
    return emit(op.reshape(wide, [-1, terms]))


class Case:
    """A product of rows with weights in blocks, and its reference in float64."""

    def __init__(
        self,
        terms,
        columns,
        bits=4,
        size=32,
        zeros=None,
        bytes_of=None,
        scale="float32",
        together=0,
        scale_bits=8,
    ):
        rng = np.random.default_rng()
        blocks = -(-terms // size)
        self.terms, self.columns, self.bits, self.bytes_of = terms, columns, bits, bytes_of
        self.size = size
        self.q = rng.integers(0, 256, (columns, blocks * size * bits // 8)).astype("uint8")
        self.s = rng.uniform(0.5, 1, (columns, blocks)).astype(scale)
        self.z = None
        if zeros is not None:
            self.z = rng.integers(0, 1 << bits, (columns, blocks)).astype(zeros)
        self.together, self.scale_bits = together, scale_bits
        if together:  # scales and minimums of blocks are integers, with a factor for some blocks
            self.factors = [
                (
                    rng.integers(0, 256, (columns, blocks * scale_bits // 8)).astype("uint8"),
                    rng.uniform(0.5, 1, (columns, blocks // together)).astype("float16"),
                )
                for _ in range(2)
            ]
        self.rng = rng

    def of_blocks(self, emit, number):
        """Scales or minimums of blocks of blocks."""
        each, of = self.factors[number]
        shape = [self.columns, -1, self.together]
        each = unpacked(relax.const(each), self.scale_bits, shape, RelaxOperators(emit))
        each = emit(op.astype(each, "float32"))
        of = emit(op.astype(emit(op.expand_dims(relax.const(of), 2)), "float32"))
        return emit(op.reshape(emit(op.multiply(each, of)), [self.columns, -1, 1]))

    def group(self, spec):
        m = tirx.Var("m", "int64")
        params = [tensor("x", m, self.terms)]
        if self.bytes_of:
            params = [tensor("x", m, self.terms, dtype="int8")]
            params.append(tensor("r", m, self.terms // self.bytes_of))
        blocks = self.s.shape[1]

        def body(emit, *x):
            shape = [self.columns, blocks, self.size]
            numbers = unpacked(relax.const(self.q), self.bits, shape, RelaxOperators(emit))
            w = emit(op.astype(numbers, "float32"))
            zero = relax.const(float(1 << self.bits - 1))
            if self.z is not None:
                zero = emit(op.expand_dims(relax.const(self.z), 2))
                zero = emit(op.astype(zero, "float32"))
            s = emit(op.astype(emit(op.expand_dims(relax.const(self.s), 2)), "float32"))
            if self.together:
                s = self.of_blocks(emit, 0)
            w = emit(op.multiply(emit(op.subtract(w, zero)), s))
            if self.together:
                w = emit(op.subtract(w, self.of_blocks(emit, 1)))
            w = emit(op.reshape(w, [self.columns, blocks * self.size]))
            if blocks * self.size != self.terms:
                w = emit(op.strided_slice(w, [1], [0], [self.terms]))
            left = rows_of_int8(emit, x, self.bytes_of) if self.bytes_of else x[0]
            return op.nn.relu(emit(op.matmul(left, emit(op.permute_dims(w)))))

        return group(params, body, spec)

    def inputs(self, rows):
        if not self.bytes_of:
            return [self.rng.standard_normal((rows, self.terms)).astype("float32")]
        scales = self.rng.uniform(0.5, 1, (rows, self.terms // self.bytes_of))
        numbers = self.rng.integers(-127, 128, (rows, self.terms))
        return [numbers.astype("int8"), scales.astype("float32")]

    def operands(self, x, *scales):
        """Rows and weights in float64."""
        count = self.q.shape[1] * 8 // self.bits
        q = unpack_array(self.q, self.bits, count).astype("float64")
        zero = 1 << self.bits - 1 if self.z is None else self.z[..., None].astype("float64")
        w = q.reshape(self.columns, -1, self.size) - zero
        scale, minimum = self.s[..., None].astype("float64"), 0
        if self.together:
            scale, minimum = (
                (numbers * np.repeat(of.astype("float64"), self.together, 1))[..., None]
                for each, of in self.factors
                for numbers in [unpack_array(each, self.scale_bits, self.s.shape[1])]
            )
        w = (w * scale - minimum).reshape(self.columns, -1)
        w = w[:, : self.terms]
        x = x.astype("float64")
        if scales:
            x = x * np.repeat(scales[0].astype("float64"), self.bytes_of, 1)
        return x, w


def claimed(case, spec=CPU):
    members = case.group(spec)
    claim = CpuContraction().claim(members, spec.device)
    assert isinstance(claim, Claim), claim
    return members, claim


def check(case, spec=CPU, rounding=0.0):
    """Compare with float64; each product of many rows may be off by a share of it."""
    members, claim = claimed(case, spec)
    assert claim.launches == 1
    with spec.tvm_target():
        emission = claim.template.emit(claim, spec.tvm_target())
        packer = Packer(tvm.IRModule())
        packed = {i: packer(f, members.inputs[i].constant) for i, f in emission.packing.items()}
    (kernel,) = emission.kernels
    main = built(kernel.func, spec)
    for rows in ROWS:
        given = case.inputs(rows)
        rest = iter(given)
        passed = [
            packed[i].value if i in packed else tvm.runtime.tensor(next(rest))
            for i in range(len(members.inputs))
        ]
        result = tvm.runtime.tensor(np.full((rows, case.columns), 7, "float32"))
        main(*passed, *[rows] * len(members.scalars), result)
        x, w = case.operands(*given)
        wanted = np.maximum(x @ w.T, 0)
        bound = 1e-6 * np.abs(wanted).max() * np.sqrt(case.terms)
        if rows > FEW:
            bound = bound + rounding * (np.abs(x) @ np.abs(w.T))
        assert (np.abs(result.numpy() - wanted) <= bound).all()
    return claim.details.config.gemm.blocks


CASES = {
    "4 bits": {"terms": 96, "columns": 40},
    "zero points, the last block shorter": {"terms": 80, "columns": 19, "zeros": "uint8"},
    "8 bits": {"terms": 64, "columns": 33, "bits": 8, "size": 16},
    "zero points of floats, half scales": {
        **{"terms": 128, "columns": 16, "bits": 8, "size": 64},
        **{"zeros": "float32", "scale": "float16"},
    },
}


CASES["blocks of blocks, with minimums"] = {"terms": 256, "columns": 24, "together": 4}
CASES["2 bits"] = {"terms": 96, "columns": 24, "bits": 2}
CASES["2 bits, scales of 4"] = {**CASES["blocks of blocks, with minimums"], "bits": 2, "size": 16}
CASES["2 bits, scales of 4"] |= {"together": 8, "scale_bits": 4}


@pytest.mark.parametrize("case", CASES)
def test_floats(case):
    assert isinstance(check(Case(**CASES[case])), FloatBlocks)


@pytest.mark.slow
def test_floats_without_avx512():
    assert isinstance(check(Case(**CASES["4 bits"]), AVX2), FloatBlocks)


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("case", [n for n in CASES if CASES[n].get("size") != 16])
def test_rows_of_bytes(case, size):
    """Sums of blocks are exact: what is left is the rounding of their scaled sum."""
    if not CPU.device.vnni_bits:
        pytest.skip("needs dot products of bytes")
    given = {**CASES[case], "terms": 256, "bytes_of": size}
    assert isinstance(check(Case(**given)), ByteBlocks)


@pytest.mark.parametrize(
    ("case", "family"),
    [
        ("4 bits", "maddubs"),
        ("zero points, the last block shorter", "maddubs"),
        ("zero points of floats, half scales", "dot"),
    ],
)
def test_rows_of_bytes_without_vnni(case, family):
    """AVX2 adds pairs of products in 16 bits, and multiplies weights of 8 bits in 16."""
    given = {**CASES[case], "terms": 256, "bytes_of": 32}
    blocks = check(Case(**given), AVX2)
    assert isinstance(blocks, ByteBlocks)
    assert blocks.dot.family == family


@pytest.mark.parametrize(("bits", "added"), [(2, 42), (4, 8), (8, 0)])
def test_sums_of_the_largest_bytes_do_not_saturate(bits, added):
    case = Case(256, 16, bits=bits, size=128, bytes_of=128)
    case.q[::2], case.q[1::2] = 0, 255

    def largest(rows):
        numbers = np.where(np.arange(rows)[:, None] % 2, -128, 127)
        return [np.repeat(numbers, 256, 1).astype("int8"), np.ones((rows, 2), "float32")]

    case.inputs = largest
    assert check(case, AVX2).pair_sums == added


def test_pairs_of_products_are_widened_once_a_block():
    _, claim = claimed(Case(256, 64, bytes_of=32), AVX2)
    (kernel,) = claim.template.emit(claim, AVX2.tvm_target()).kernels
    inner, dots = inner_block(kernel.func, AVX2, "vpmaddubsw")
    assert dots == 8 * inner.count("vpmaddwd") > 0


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_bytes_in_vectors_of_four(bits):
    blocks = check(Case(256, 19, bits=bits, bytes_of=32), parse("cpu:nehalem"))
    assert isinstance(blocks, ByteBlocks)
    assert (blocks.lanes, blocks.dot.k) == (4, 2)


@pytest.mark.parametrize("bytes_of", [32, None])
@pytest.mark.parametrize("case", [n for n in CASES if CASES[n].get("size") != 16])
def test_many_rows_in_bfloat16(case, bytes_of):
    """Both factors are rounded to 8 bits where the user allows approximate results."""
    spec = CPU.permitting(["approximate"])
    if find(spec.device, "amx", "bfloat16", "bfloat16") is None:
        pytest.skip("needs tiles of bfloat16")
    given = {**CASES[case], "terms": 1088, "bytes_of": bytes_of}
    if given.get("together"):
        given["terms"] = 1024
    case = Case(**given)
    check(case, spec, rounding=2.0**-7)
    _, claim = claimed(case, spec)
    assert claim.details.config.gemm.many.dot.a_dtype == "bfloat16"
