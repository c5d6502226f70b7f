"""Networks written operator by operator, with seeded weights."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

_POOL = 1 << 20  # random numbers that all weights are pieces of


class Network:
    """A function of one dataflow block that grows call by call."""

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = dtype
        self._builder = relax.BlockBuilder()
        self._numbers = np.random.default_rng(0).standard_normal(_POOL, np.float32)
        self._start = 0

    def build(self, write: Callable[..., Any], *shapes: Sequence[int]) -> tvm.IRModule:
        """Write a function of inputs of these shapes; ``write`` takes them and gives the output."""
        params = [
            relax.Var(f"x{i}", relax.TensorType(shape, self.dtype))
            for i, shape in enumerate(shapes)
        ]
        with self._builder.function("main", params):
            with self._builder.dataflow():
                found = write(self, *params)
                outputs = found if isinstance(found, list) else [found]
                outputs = [self._builder.emit_output(output) for output in outputs]
            self._builder.emit_func_output(outputs if len(outputs) > 1 else outputs[0])
        return self._builder.finalize()

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind an expression."""
        return self._builder.emit(expr)

    def weight(self, *shape: int) -> relax.Expr:
        """Draw a constant; no two are equal."""
        self._start = (self._start + 7919) % _POOL
        count = prod(shape)
        numbers = np.roll(self._numbers, self._start)
        scale = 1 / np.sqrt(max(1, count // shape[0]))
        drawn = np.resize(numbers, count).reshape(shape) * np.float32(scale)
        return relax.const(drawn.astype(self.dtype))

    def number(self, value: float) -> relax.Expr:
        """Write a number in the network's type."""
        return relax.const(value, self.dtype)

    def linear(self, x: relax.Var, width: int, *, bias: bool = True) -> relax.Var:
        """Multiply by a constant matrix."""
        found = self.emit(op.matmul(x, self.weight(int(x.ty.shape[-1]), width)))
        return self.emit(op.add(found, self.weight(width))) if bias else found

    def conv(
        self,
        x: relax.Var,
        channels: int,
        window: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        *,
        groups: int = 1,
        padding: int | Sequence[int] | None = None,
        bias: bool = True,
        act: Callable[[relax.Var], relax.Expr] | None = op.nn.relu,
    ) -> relax.Var:
        """Convolve an image or a video; padded to the same extents by default."""
        rank = x.ty.ndim - 2
        windows = [window] * rank if isinstance(window, int) else list(window)
        strides = [stride] * rank if isinstance(stride, int) else list(stride)
        if padding is None:
            padding = [n // 2 for n in windows]
        pads = [padding] * rank if isinstance(padding, int) else list(padding)
        convolve = op.nn.conv2d if rank == 2 else op.nn.conv3d
        filters = self.weight(channels, int(x.ty.shape[1]) // groups, *windows)
        y = self.emit(convolve(x, filters, strides=strides, padding=pads, groups=groups))
        if bias:
            y = self.emit(op.add(y, self.weight(1, channels, *[1] * rank)))
        return y if act is None else self.emit(act(y))

    def pool(
        self,
        x: relax.Var,
        window: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        *,
        average: bool = False,
    ) -> relax.Var:
        """Take the maximum or the mean of windows."""
        rank = x.ty.ndim - 2
        name = f"{'avg' if average else 'max'}_pool{rank}d"
        windows = [window] * rank if isinstance(window, int) else list(window)
        given = window if stride is None else stride
        strides = [given] * rank if isinstance(given, int) else list(given)
        pads = [padding] * rank if isinstance(padding, int) else list(padding)
        return self.emit(getattr(op.nn, name)(x, windows, strides, pads))

    def concat(self, parts: Sequence[relax.Var], axis: int = 1) -> relax.Var:
        """Put tensors behind each other; channels by default."""
        return self.emit(op.concat(list(parts), axis))
