"""Casts between float32 and a half type, while a function is rewritten.

float32 to half   once for the readers in a block, saturated for float16 where the value comes from
                  integers alone: masks are large negative numbers
half to float32   anew for each reader: the cast belongs into the kernel that reads it
constants         saturated for float16, once each
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

from ...core.constants.numpy_types import numpy_dtype
from ...core.constants.weight_names import derived
from ..tensor_types import dtype_of

FULL = "float32"


@dataclass
class Value:
    """What a variable of the model became.

    Attributes
    ----------
    expr : tvm.relax.Var
        In the type in which it was computed or is stored.
    from_integers
        No activation has a part in it.
    statistic
        A reduction's result, or computed from such alone: small, and worth keeping exact.
    rounded : (int, tvm.relax.Var), optional
        Its half version, with the number of the block in which that may be used.
    """

    expr: Any
    from_integers: bool = False
    statistic: bool = False
    rounded: tuple[int, Any] | None = None


class Casts:
    """Casts that a block builder emits.

    Attributes
    ----------
    block : int
        Number of the block that is written.
    """

    _SAMPLE = 4096  # elements of which one differs, in nearly all constants that differ

    def __init__(self, builder: relax.BlockBuilder, half: str) -> None:
        self._builder, self._half = builder, half
        self._constants: dict[tuple[int, str], GenericConst] = {}
        self.block = 0

    def cast(self, value: Value, dtype: str) -> Any:
        """Return a value in a float type; a rounded version is made once, a widened one anew.

        A widening cast belongs into the kernel that reads it: shared, it would be stored.
        """
        if dtype_of(value.expr) == dtype:
            return value.expr
        if dtype != self._half:
            return self._builder.emit(relax.op.astype(value.expr, dtype))
        if value.rounded is None or value.rounded[0] != self.block:
            wide = value.expr
            if value.from_integers and dtype == "float16":  # masks of large negative numbers
                limit = float(np.finfo(np.float16).max)
                low, high = tirx.FloatImm(FULL, -limit), tirx.FloatImm(FULL, limit)
                wide = self._builder.emit(relax.op.clip(wide, low, high))
            value.rounded = (self.block, self._builder.emit(relax.op.astype(wide, dtype)))
        return value.rounded[1]

    def is_rounded(self, const: GenericConst) -> bool:
        """Whether a constant changes when it becomes half."""
        if dtype_of(const) == self._half:
            return False
        flat = const.value.numpy().reshape(-1)
        parts = (flat[: self._SAMPLE], flat[self._SAMPLE :])
        return any((x.astype(numpy_dtype(self._half)) != x).any() for x in parts)

    def constant(self, const: GenericConst, dtype: str) -> GenericConst:
        """Return a constant in a float type."""
        if dtype_of(const) == dtype:
            return const
        key = (hash(const), dtype)
        if key not in self._constants:

            def cast(sources: Sequence[GenericConst]) -> GenericConst:
                array = sources[0].value.numpy()
                if dtype == "float16":
                    limit = np.finfo(np.float16).max
                    array = np.where(np.isfinite(array), np.clip(array, -limit, limit), array)
                return relax.const(array.astype(numpy_dtype(dtype)), dtype)

            self._constants[key] = derived(cast([const]), dtype, [const], cast)
        return self._constants[key]
