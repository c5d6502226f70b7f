"""A small graph of one kind, static or symbolic, in a precision or quantised to bytes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

FLOAT = "float"  # stands for the precision that a case is made in
FLOATS = ("float32", "float16", "bfloat16")
INT8 = "int8"
DTYPES = (*FLOATS, INT8)
FORMS = ("static", "symbolic")
_INPUT_STEP = 1 / 64  # of quantised inputs
_LEVELS = 100  # of quantised results: steps of the largest
op = relax.op
Shape = tuple[int | str, ...]
Inputs = tuple[tuple[str, Shape, str], ...]


@dataclass(frozen=True)
class Case:
    """One graph."""

    # Name, shape, dtype; letters are dimensions that may be symbolic, ``float`` the precision.
    inputs: Inputs
    body: Callable[..., Any]  # ``(emit, *variables) -> expression``
    reference: Callable[..., np.ndarray]  # the same of float64 (and integer) arrays
    dims: Mapping[str, int] = field(default_factory=dict)  # extents of the letters
    # Of results relative to the largest one, in units of the precision's epsilon.
    tolerance: float = 16.0
    # Precisions. As ``int8`` inputs are bytes with a scale, which the graph computes with in
    # float32, and its result is quantised: as in quantised models.
    dtypes: tuple[str, ...] = DTYPES

    @property
    def forms(self) -> tuple[str, ...]:
        """Of :data:`FORMS`, those that there are."""
        return FORMS if self.dims else FORMS[:1]

    @property
    def is_quantised(self) -> bool:
        """Whether its form of bytes is the graph between scales: others have bytes themselves."""
        return any(kind == FLOAT for _, _, kind in self.inputs)

    def module(self, dtype: str, form: str, step: float) -> tvm.IRModule:
        """Build the graph as a Relax module.

        Parameters
        ----------
        dtype, form
            Of :data:`DTYPES` and :data:`FORMS`.
        step
            Of a quantised result.
        """
        sizes: dict[Any, Any] = dict(self.dims)
        if form == "symbolic":
            sizes = {name: tirx.Var(name, "int64") for name in self.dims}
        builder = relax.BlockBuilder()
        params = [
            relax.Var(
                name,
                relax.TensorType(
                    [sizes.get(d, d) for d in shape], dtype if kind == FLOAT else kind
                ),
            )
            for name, shape, kind in self.inputs
        ]
        with builder.function("main", params):
            with builder.dataflow():
                given: list[Any] = params
                is_quantised = dtype == INT8 and self.is_quantised
                if is_quantised:
                    kinds = [kind for _, _, kind in self.inputs]
                    given = [
                        _dequantised(builder.emit, x) if kind == FLOAT else x
                        for x, kind in zip(params, kinds, strict=True)
                    ]
                result = builder.normalize(self.body(builder.emit, *given))
                if is_quantised and "float" in str(result.ty.dtype.dtype):
                    result = builder.normalize(_quantised(builder.emit, builder.emit(result), step))
                result = builder.emit_output(result)
            builder.emit_func_output(result)
        return builder.get()

    def arrays(self, dtype: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the inputs; those called ``ids`` are valid indices of nine rows."""
        return {
            name: _drawn(
                name,
                [self.dims[d] if isinstance(d, str) else d for d in shape],
                dtype if kind == FLOAT else kind,
                rng,
            )
            for name, shape, kind in self.inputs
        }

    def expected(self, dtype: str, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, float]:
        """Compute the result in float64, and the step that a quantised one is rounded to."""
        is_quantised = dtype == INT8 and self.is_quantised
        wide = []
        for name, _, kind in self.inputs:
            array = arrays[name]
            scale = _INPUT_STEP if is_quantised else 1.0
            wide.append(array.astype("float64") * scale if kind == FLOAT else array)
        found = self.reference(*wide)
        if not is_quantised or found.dtype.kind in "iu":
            return found, 1.0
        step = float(np.abs(found).max()) / _LEVELS
        return np.round(found / step), step


def _drawn(name: str, shape: list[int], dtype: str, rng: np.random.Generator) -> np.ndarray:
    if name == "ids":
        return rng.integers(0, 9, shape).astype(dtype)
    if "int" in dtype:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def _dequantised(emit: Any, x: Any) -> Any:
    wide = emit(op.astype(x, "float32"))
    return emit(op.multiply(wide, relax.const(_INPUT_STEP, "float32")))


def _quantised(emit: Any, x: Any, step: float) -> Any:
    levels = emit(op.round(emit(op.divide(emit(op.astype(x, "float32")), _scalar(step)))))
    return op.astype(emit(op.clip(levels, -128, 127)), INT8)


def _scalar(value: float) -> Any:
    return relax.const(np.float32(value), "float32")
