"""How the threads of a block move vectors through shared memory, and wait for one another.

NVIDIA    functions of CUDA that take addresses, which TVM does not count as accesses
AMD       loads and stores of vectors, which LLVM knows best
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from . import lds
from .register_copies import load_or_zero
from .shared_tiles import block_barrier, load_shared, store_shared

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
