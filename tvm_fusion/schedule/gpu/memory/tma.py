"""Copies of tiles by the Tensor Memory Accelerator: tensor maps, encoded by the host, and loads.

    host:    map = encode(buffer, sizes, strides, box)         innermost dimension first
    device:  load(shared, map, coordinates, mbarrier)          one thread; 128-byte swizzle

Rows of a box are 128 bytes wide; chunk c of row r lies in place ``c ^ r % 8`` of its row, which is
what wgmma's descriptors of 128-byte swizzling mean. Rows are counted from multiples of 1,024 bytes
of shared memory; a box begins at any row. Elements beyond the sizes are zeros, and count as bytes
that arrive.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.script import tirx as script

from ....core.tir.expressions import load as element
from ....core.tir.loops import index

ROW_BYTES = 128  # of a box, the innermost dimension
PANEL = ROW_BYTES // 2  # elements of a half type: boxes of one tile lie side by side
ALIGNMENT = 16  # bytes, of an address and of all strides but the innermost
MAX_RANK = 5
MAX_BOX, MAX_STEP = 256, 8  # of a dimension: elements that a box spans, and from one to the next
TILE_ALIGNMENT = 1024  # bytes: eight rows, after which the swizzle repeats
_SWIZZLE_128B, _PROMOTE_TO_128B = 3, 2

_LOAD = """
__device__ __forceinline__ void {name}(void* to, const CUtensorMap& map, void* bar, {parameters}) {{
  unsigned place = (unsigned)__cvta_generic_to_shared(to);
  unsigned barrier = (unsigned)__cvta_generic_to_shared(bar);
  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes [%0], [%1, {{{places}}}], [%2];"
               :: "r"(place), "l"(&map), "r"(barrier), {arguments} : "memory");
}}
"""


_PREFETCH = """
__device__ __forceinline__ void tvm_fusion_tma_prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}
"""


@dataclass(frozen=True)
class TensorMap:
    """A view of a buffer that boxes are copied from."""

    buffer: ir.Var  # in global memory
    start: ir.Expr  # offset of the view's first element
    sizes: tuple[ir.Expr, ...]  # extents, the contiguous dimension first
    strides: tuple[ir.Expr, ...]  # of the other dimensions, in elements
    box: tuple[int, ...]  # elements of a box
    # From one element of a box to the next, along each dimension; empty: 1.
    steps: tuple[int, ...] = ()

    def encode(self, name: str) -> tuple[ir.Var, list[tirx.Stmt]]:
        """Write what the host does before a launch; return the variable of the map as well."""
        dtype, rank = str(self.buffer.ty.dtype), len(self.sizes)
        variable = tirx.Var(name, script.handle("tensormap").ty)
        flat = self.start
        places: list[ir.Expr] = []
        for extent in reversed(list(self.buffer.ty.shape)[1:]):
            places.append(tirx.floormod(flat, index(extent)))
            flat = tirx.floordiv(flat, index(extent))
        first = element(self.buffer, [flat, *reversed(places)])
        item = tirx.const(self.item_bytes, "int64")
        steps = self.steps or (1,) * rank
        spans = [(size - 1) * step + 1 for size, step in zip(self.box, steps, strict=True)]
        room = tirx.call_intrin(variable.ty, "tirx.tvm_stack_alloca", "tensormap", 1)
        encoded = tirx.tensormap_encode_tiled(
            variable,
            tirx.address_of(first),
            *map(index, self.sizes),
            *(index(s) * item for s in self.strides),
            *map(index, spans),
            *map(index, steps),
            descriptor_dtype=dtype,
            rank=rank,
            swizzle=_SWIZZLE_128B,
            l2_promotion=_PROMOTE_TO_128B,
        )
        return variable, [tirx.Bind(variable, room), tirx.Evaluate(encoded)]

    @property
    def item_bytes(self) -> int:
        """Size of an element."""
        return int(tirx.const(0, str(self.buffer.ty.dtype)).ty.dtype.itemsize)


def shared_tiles(elements: int, dtype: str, name: str) -> ir.Var:
    """Declare a block's dynamic shared memory, aligned as the swizzle of boxes wants it."""
    return tirx.decl_buffer(
        [index(elements)],
        dtype,
        name,
        scope="shared.dyn",
        data_alignment=TILE_ALIGNMENT,
        layout=None,
    )


def load(
    to: ir.TensorLoad, tensor_map: ir.Var, bar: ir.TensorLoad, coordinates: Sequence[ir.Expr]
) -> tirx.Stmt:
    """Issue the copy of a box.

    Parameters
    ----------
    to : TensorLoad
        Its place in shared memory.
    bar : TensorLoad
        The mbarrier that gets the box's bytes.
    coordinates : sequence of Expr
        Of its first element, the contiguous dimension first.
    """
    rank = len(coordinates)
    name = f"tvm_fusion_tma_load_{rank}d"
    source = _LOAD.format(
        name=name,
        rank=rank,
        parameters=", ".join(f"int x{i}" for i in range(rank)),
        places=", ".join(f"%{3 + i}" for i in range(rank)),
        arguments=", ".join(f'"r"(x{i})' for i in range(rank)),
    )
    places = [tirx.Cast("int32", c) for c in coordinates]
    call = cuda_func_call(
        name, tirx.address_of(to), tensor_map, tirx.address_of(bar), *places, source_code=source
    )
    return tirx.Evaluate(call)


def prefetch(tensor_map: ir.Var) -> tirx.Stmt:
    """Fetch a map before its first use; one thread does."""
    name = "tvm_fusion_tma_prefetch"
    return tirx.Evaluate(cuda_func_call(name, tensor_map, source_code=_PREFETCH))
