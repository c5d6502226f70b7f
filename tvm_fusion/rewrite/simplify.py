"""The rewriting stage, with stock simplifications behind it."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir.transform import PassContext

from ..foreign import on_ours
from .batch_matmuls import BatchMatmuls
from .byte_products import ByteProducts
from .join_matmuls import JoinMatmuls


@tvm.transform.module_pass(opt_level=0, name="Rewrite")
class Rewrite:
    """Turn a graph into a cheaper equivalent one.

    Inference forms of batch norm and dropout, no aliases, no expression computed twice, nothing
    computed that no output needs; products of quantised tensors as products of bytes; matrix
    products of one left operand joined, and those side by side batched.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every Relax function that is ours."""
        return on_ours(
            relax.transform.DecomposeOpsForInference(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.EliminateCommonSubexpr(),
            relax.transform.DeadCodeElimination(),
            ByteProducts(),
            BatchMatmuls(),
            JoinMatmuls(),
        )(mod)
