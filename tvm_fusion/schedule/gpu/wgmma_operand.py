"""Matrix descriptors of wgmma: how an operand's tile lies in shared memory.

Rows of 128 bytes, as TMA writes them with 128-byte swizzling: of K, or of M or N in panels of 64
elements. A descriptor holds the address, in 16 bytes, and the steps between panels and between
groups of eight rows (PTX ISA, "matrix descriptor format"); adding to it moves along K.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ..instructions.nvidia import K_BYTES
from .tma import ROW_BYTES

K = K_BYTES // 2  # terms of an instruction, of half types

_DESCRIPTOR = """
__device__ __forceinline__ unsigned long long {name}(const void* tile) {{
  unsigned place = (unsigned)__cvta_generic_to_shared(tile);
  return (unsigned long long)((place & 0x3FFFF) >> 4) | ({leading}ull << 16) | ({stride}ull << 32)
         | (1ull << 62);
}}
"""
EIGHT_ROWS = 8 * ROW_BYTES >> 4  # from eight rows to the next, in 16 bytes


@dataclass(frozen=True)
class Operand:
    """How an operand's tile lies in shared memory.

    Attributes
    ----------
    is_k_contiguous : bool
        Whether rows of 128 bytes are of K; otherwise of M or N, in panels of 64.
    panel_bytes : int
        From one panel of 64 elements to the next.
    """

    is_k_contiguous: bool
    panel_bytes: int

    @property
    def leading(self) -> int:
        """From one panel to the next where rows are of M or N, in 16 bytes; not used for K."""
        return 1 if self.is_k_contiguous else self.panel_bytes >> 4

    def descriptor(self, tile: ir.TensorLoad) -> ir.Expr:
        """Describe the tile that starts at a place of shared memory."""
        name = f"tvm_fusion_wgmma_descriptor_{self.leading}"
        source = _DESCRIPTOR.format(name=name, leading=self.leading, stride=EIGHT_ROWS)
        address = tirx.address_of(tile)
        return cuda_func_call(name, address, source_code=source, return_type="uint64")

    def step(self, k16: int) -> int:
        """Return the offset added to a descriptor for the k16-th 32 bytes of K, over all panels.

        Where rows are of M or N, 32 bytes of K are 16 rows of a half type.
        """
        if self.is_k_contiguous:
            panel, column = divmod(k16 * K_BYTES, ROW_BYTES)
            return panel * self.panel_bytes + column >> 4
        return k16 * K * ROW_BYTES >> 4
