"""How the threads of a block move vectors through shared memory, and wait for one another.

NVIDIA    functions of CUDA that take addresses, which TVM does not count as accesses
AMD       loads and stores of vectors, which LLVM knows best
"""

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from . import lds
from .shared_tiles import block_barrier, load_shared, store_shared

# Copies to shared memory through registers, where there is no cp.async (compute capability 7.5).
#
# for each step:
#     load(step + 1) into registers      on its way while this step is multiplied
#     multiply this step
#     store(step + 1) to shared memory   before the barrier of the block


_VECTORS = {4: ("unsigned", "*"), 8: ("uint2", "xy"), 16: ("uint4", "xyzw")}


def load_or_zero(
    to: ir.TensorLoad, source: ir.TensorLoad, size: int, is_loaded: ir.Expr
) -> tirx.Stmt:
    """Load 4, 8 or 16 aligned bytes of global memory into registers, or zeros.

    Parameters
    ----------
    to
        The first element of registers.
    source
        The first element in memory; it is not read where the condition does not hold.
    size
        Bytes.
    """
    kind, fields = _VECTORS[size]
    words = [f"word[{i}] = value{'' if f == '*' else '.' + f};" for i, f in enumerate(fields)]
    zero = "0" if size == 4 else f"make_{kind}({', '.join('0' * len(fields))})"
    name = f"tvm_fusion_load_or_zero_{size}"
    code = f"""
__device__ __forceinline__ void {name}(void* to, const void* source, bool is_loaded) {{
  unsigned* word = (unsigned*)to;
  {kind} value = {zero};
  if (is_loaded) value = *(const {kind}*)source;
  {" ".join(words)}
}}
"""
    places = tirx.address_of(to), tirx.address_of(source)
    return tirx.Evaluate(cuda_func_call(name, *places, is_loaded, source_code=code))


Copy = Callable[[ir.TensorLoad, ir.TensorLoad, int], tirx.Stmt]


@dataclass(frozen=True)
class VectorMoves:
    """The moves of a vendor's threads."""

    scope: str  # of shared memory, whose barriers the kernel places
    # ``(to, element, size)``: bytes of shared memory into registers, and back.
    load: Copy
    store: Copy
    # ``(to, source, size, is_loaded)``: bytes of global memory into registers, or zeros.
    load_or_zero: Callable[[ir.TensorLoad, ir.TensorLoad, int, ir.Expr], tirx.Stmt]
    barrier: Callable[[], tirx.Stmt]  # of a block
    # What keeps the compiler's scheduler from moving loads of a next stage to their use.
    scheduling_barrier: Callable[[], tirx.Stmt] | None = None
    # The type of registers that hold elements of a type, and an element as they hold it.
    held_as: Callable[[str], str] = str
    held: Callable[[ir.Expr], ir.Expr] = lambda value: value


NVIDIA_MOVES = VectorMoves("shared.dyn", load_shared, store_shared, load_or_zero, block_barrier)
AMD_MOVES = VectorMoves(
    lds.SCOPE, lds.copy_vector, lds.copy_vector, lds.copy_or_zero, lds.barrier,
    lds.scheduling_barrier, lds.held_as, lds.held,
)  # fmt: skip
