"""Storage in half precision with float32 where it matters, as one pass on Relax.

TVM's ``ToMixedPrecision`` knows float16 only, leaves softmax, norms and reductions in it, and turns
masks of large negative numbers into infinities.
"""

from __future__ import annotations

import tvm

from ...core.untouched import is_rewritable
from .rewriter import to_half_precision

_STORAGE = {"fp16": "float16", "bf16": "bfloat16"}


@tvm.transform.module_pass(opt_level=0, name="ToHalfPrecision")
class ToHalfPrecision:
    """Store weights and activations in a half type; accumulate, normalise and take exp in float32.

    * Matrix products and convolutions read half operands and sum in float32.
    * Reductions, norms, softmax and functions like exp compute in float32.
    * Cheap elementwise operators and views stay in float32 between two operators that compute in
      it, as long as the value has one reader, so that a fused kernel rounds once, where it stores.
    * A value with several readers is rounded where it is made, unless all of them want float32.
    * What comes from integers alone (positions, timesteps) stays in float32: bfloat16 cannot count
      beyond 256.
    * Constants that would overflow become the largest finite number, so that masks stay masks.

    Parameters
    ----------
    precision : {"fp16", "bf16"}
        The storage type.
    half_io : bool
        Let float32 parameters and results of public functions become half too.
    """

    def __init__(self, precision: str, half_io: bool = False):
        self.half = _STORAGE[precision]
        self.half_io = half_io

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every rewritable function."""
        result = mod.clone()
        for gvar, func in mod.functions.items():
            if not is_rewritable(func):
                continue
            public = bool(func.attrs) and "global_symbol" in func.attrs
            result[gvar] = to_half_precision(mod, func, self.half, self.half_io and public)
        return result
