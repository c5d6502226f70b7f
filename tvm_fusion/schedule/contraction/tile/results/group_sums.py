"""Sums over groups of columns of a result: threads that hold a group exchange what they add up.

    elements[i] = result of the thread's columns of the group, as it is stored
    for each sum:  sum = term + term + .. ;  sum += that of the other lanes     shuffles
    first lane:    store outputs of the group                                   global

Four lanes have a group's columns behind the products of wgmma (direct_epilogue), eight where sums
went through shared memory (shared_epilogue). They have one row, so that all or none of them exist.
"""

from collections.abc import Mapping

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from .....core.tir.expressions import load
from .....core.tir.loops import index, local, sequence, substitute, unrolled, when
from ..config import TileGemmConfig

_SUM = """
__device__ __forceinline__ float {name}(float x) {{
  unsigned mask = {mask}u << (threadIdx.x & {first});
  #pragma unroll
  for (int i = 1; i < {lanes}; i *= 2) x += __shfl_xor_sync(mask, x, i);
  return x;
}}
"""


class GroupRegisters:
    """A thread's elements of a group, and their sums.

    Parameters
    ----------
    config
        The product, with group sums.
    lanes
        Adjacent threads that hold a group, a power of two.

    Attributes
    ----------
    size : int
        Elements of a thread.
    """

    def __init__(self, config: TileGemmConfig, lanes: int) -> None:
        groups = config.problem.contraction.group_sums
        assert groups is not None
        self._groups, self._lanes = groups, lanes
        self.size = groups.width // lanes
        self._elements = local("group", [self.size], str(groups.element.ty.dtype))
        self._sums = local("group_sums", [len(groups.sums)], "float32")
        self.buffers = [self._elements, self._sums]

    def keep(self, first: int, made: ir.Var, width: int) -> tirx.Stmt:
        """Keep a vector of results."""

        def one(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._elements, load(made, [i]), [i + first])

        return unrolled("i", width, one)

    def store(
        self, thread: ir.Expr, where: Mapping[ir.Var, ir.Expr], inside: ir.Expr | None
    ) -> tirx.Stmt:
        """Add up what was kept, and store the outputs of the group.

        Parameters
        ----------
        where
            The product's axes at one of the elements.
        """
        held = {
            target: load(self._sums, [index(n)]) for n, (target, _) in enumerate(self._groups.sums)
        }

        def computed(expr: ir.Expr, values: Mapping[ir.Var, ir.Expr]) -> ir.Expr:
            return substitute(expr, values, lambda x: held.get(x.source, x))

        stmts: list[tirx.Stmt] = []
        for number, (_, term) in enumerate(self._groups.sums):
            each = [
                computed(term, {self._groups.element: load(self._elements, [index(i)])})
                for i in range(self.size)
            ]
            total = each[0]
            for other in each[1:]:
                total = total + other
            stmts.append(tirx.BufferStore(self._sums, total, [number]))
            whole = _sum_of_lanes(load(self._sums, [index(number)]), self._lanes)
            stmts.append(tirx.BufferStore(self._sums, whole, [number]))
        stores = [
            tirx.BufferStore(r.buffer, computed(r.value, where), self._at(r.indices, where))
            for r in self._groups.stores
        ]
        is_first = tirx.floormod(thread, index(self._lanes)).equal(0)
        stmts.append(
            when(is_first if inside is None else tirx.And(inside, is_first), sequence(stores))
        )
        return sequence(stmts)

    @staticmethod
    def _at(indices: tuple[ir.Expr, ...], where: Mapping[ir.Var, ir.Expr]) -> list[ir.Expr]:
        return [substitute(i, where) for i in indices]


def _sum_of_lanes(value: ir.Expr, lanes: int) -> ir.Expr:
    """Add up a value of some adjacent lanes; all of them get the sum."""
    name = f"tvm_fusion_sum_of_{lanes}_lanes"
    mask, first = (1 << lanes) - 1, 32 - lanes
    source = _SUM.format(name=name, mask=mask, first=first, lanes=lanes)
    return cuda_func_call(name, value, source_code=source, return_type="float32")
