"""Input channels of convolutions in words of 32 bits, for dot-product instructions.

    acc[pixel, k] += dot(image[pixel, 4 channels], weight[4 channels, k])            vpdpbusd
    acc[pixel, k] += dot(image[pixel, 2 channels], weight[2 channels, k])            vdpbf16ps
                                                                                     pmaddwd

To register tiles a word is one channel of 32 bits, and the packed weight has words. The image stays
one of single channels: words are read where these are contiguous, in place or in the lines that a
task copies. Channels beyond the last have weights of zero.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import ceildiv, constant, index
from ....device import Device
from ....program.stage import Axis
from ...contraction.cpu.dot_products import BYTES, Bf16Dot, DotProduct, Int16Dot, VnniDot, uncast
from ...cpu.register_tile import VectorUnit
from ...index.index_ranges import Ranges
from ...instructions.cpu import dot_of
from ...instructions.table import find, has
from .image import converted
from .image_reader import ImageReader
from .problem import ConvProblem, Groups, Words


def with_words(problem: ConvProblem, device: Device) -> ConvProblem:
    """Join the channels of a convolution where a CPU has an instruction for its types.

    Parameters
    ----------
    problem
        A convolution, whose groups are known.
    """
    c, groups = problem.c, problem.groups
    if c is None:
        return problem
    dots = _instructions(problem, c, device)
    dot = next((d for d in dots if groups is None or groups.c % d.group == 0), None)
    channels = constant(c.extent) or 0
    if dot is None or channels < dot.group // 2 + 1:
        return problem
    size, image = dot.group, problem.image
    core, weight = (
        _element(x, dtype)
        for x, dtype in ((image.value, dot.a_dtype), (problem.weight, dot.b_dtype))
    )
    block = -(-problem.block // size) * size
    inner = replace(image, value=core, outside=converted(image.outside, dot.a_dtype))
    single = replace(problem, image=inner, weight=weight, block=block)
    word = Axis(tirx.Var("word", "int64"), ceildiv(c.extent, size))
    return replace(
        single,
        weight=dot.word(weight, word.var),
        c=word,
        block=1 if problem.block == 1 else block // size,
        groups=None if groups is None else Groups(groups.k, groups.c // size),
        words=Words(dot, single, problem.block % size == 0 and channels % size == 0),
    )


def _instructions(problem: ConvProblem, c: Axis, device: Device) -> Iterator[DotProduct]:
    """List the instructions whose vectors are those of the accumulators, the best one first."""
    a, b = (str(_core(x).ty.dtype) for x in (problem.image.value, problem.weight))
    dtype, lanes = problem.contraction.dtype, VectorUnit.of(device).lanes
    widest = find(device, "dot", "uint8", "int8")
    if dtype == "int32" and {a, b} == set(BYTES) and widest is not None and widest.n == lanes:
        yield VnniDot(lanes, a, b, c, problem.image.value)
    of_int16 = dot_of("int16", "int16", lanes)
    if dtype == "int32" and {a, b} <= {*BYTES, "int16"} and has(device, of_int16):
        yield Int16Dot(lanes, "int16", "int16", c, problem.image.value)
    widest = find(device, "dot", "bfloat16", "bfloat16")
    if dtype == "float32" and a == b == "bfloat16" and widest is not None and widest.n == lanes:
        yield Bf16Dot(lanes, a, b, c, problem.image.value)


def _element(operand: ir.Expr, dtype: str) -> ir.Expr:
    """Return an element of an operand in the type that is multiplied."""
    core = _core(operand)
    return core if str(core.ty.dtype) == dtype else tirx.Cast(dtype, core)


def _core(operand: ir.Expr) -> ir.Expr:
    """Take lossless casts off an operand, also those of int16 to int32."""
    core = uncast(operand)
    is_wide = isinstance(core, tirx.Cast) and str(core.ty.dtype) == "int32"
    return core.value if is_wide and str(core.value.ty.dtype) == "int16" else core


class WordImage(ImageReader):
    """Words of an image."""

    def __init__(self, problem: ConvProblem, inner: ImageReader) -> None:
        super().__init__(problem)
        assert problem.words is not None
        self._inner, self._words = inner, problem.words

    def buffers(self) -> list[ir.Var]:
        """List those of single channels."""
        return self._inner.buffers()

    def fill(self, task: Mapping[ir.Var, ir.Expr], ranges: Ranges) -> tirx.Stmt | None:
        """Prepare single channels."""
        return self._inner.fill(task, ranges)

    def address(self, task: Mapping, place: Mapping, ranges: Ranges) -> ir.Expr:
        """Read the first channel of a word."""
        single, word = self._words.single.c, self.problem.c
        assert single is not None
        assert word is not None
        first = place[word.var] * self._words.dot.group
        return self._inner.at(task, {**place, single.var: first}, ranges)

    def at(self, task: Mapping, place: Mapping, ranges: Ranges) -> ir.Expr:
        """Read a word: one load of adjacent channels."""
        first = self.address(task, place, ranges)
        *indices, last = first.indices
        channels = tirx.Ramp(last, index(1), self._words.dot.group)
        return tirx.reinterpret("int32", load(first.source, [*indices, channels]))
