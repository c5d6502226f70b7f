"""Convolutions over blocked layouts: their groups, kernels, and float64 results."""

from dataclasses import dataclass, replace

import numpy as np
import tvm
from group_kernels import CPU, extents, group, tensor
from tvm import relax, te, tirx

from tvm_fusion.core.contract.template import Claim
from tvm_fusion.schedule.convolution.dense.config import ConvConfig
from tvm_fusion.schedule.convolution.template import CpuConvolution
from tvm_fusion.schedule.convolution.winograd.config import WinogradConfig
from tvm_fusion.schedule.cpu.schedule import schedule_cpu
from tvm_fusion.schedule.stage.install import gather

op = relax.op


@dataclass(frozen=True)
class Conv:
    """A convolution with bias and ReLU; blocks of 0 are plain layouts."""

    c: int
    k: int
    size: tuple[int, int]
    window: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (1, 1, 1, 1)  # top, left, bottom, right
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    batch: int = 1
    block_in: int = 16
    block_out: int = 16
    residual: bool = False
    dtype: str = "float32"  # of the image; the weight of uint8 ones is int8; integers' sums int32
    zero: int = 0  # what the padding is

    @property
    def is_integer(self):
        return self.dtype in ("uint8", "int16")

    @property
    def out_dtype(self):
        return "int32" if self.is_integer else self.dtype

    def weights(self, seed=0):
        rng = np.random.default_rng(seed)
        shape = (self.k, self.c // self.groups, *self.window)
        bias = (1, self.k, 1, 1)
        if self.is_integer:
            most, dtype = (128, "int8") if self.dtype == "uint8" else (256, "int16")
            weight = rng.integers(-most, most, shape).astype(dtype)
            return weight, rng.integers(-999, 999, bias).astype("int32")
        weight = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return weight.astype(self.dtype), rng.standard_normal(bias).astype(self.dtype)

    def image(self, seed=1):
        rng = np.random.default_rng(seed)
        shape = (self.batch, self.c, *self.size)
        if self.is_integer:
            least = 0 if self.dtype == "uint8" else -255
            return rng.integers(least, 256, shape).astype(self.dtype)
        return rng.standard_normal(shape).astype(self.dtype)

    @property
    def out_size(self):
        top, left, bottom, right = self.padding
        added = top + bottom, left + right
        return tuple(
            (self.size[n] + added[n] - self.dilation[n] * (self.window[n] - 1) - 1)
            // self.stride[n]
            + 1
            for n in range(2)
        )

    def params(self):
        shape = (self.batch, self.c, *self.size)
        shape = blocked_shape(shape, self.block_in) if self.block_in else shape
        found = [tensor("x", *shape, dtype=self.dtype)]
        if self.residual:
            shape = (self.batch, self.k, *self.out_size)
            found.append(
                tensor("r", *(blocked_shape(shape, self.block_out) if self.block_out else shape))
            )
        return found

    def body(self, emit, x, residual=None, prologue=lambda emit, x: x):
        w, b = self.weights()
        if self.block_in:
            x = unblock(emit, x, self.c)
        x = prologue(emit, x)
        padding, (w, b) = self.padding, (relax.const(tvm.runtime.tensor(a)) for a in (w, b))
        if self.zero:
            top, left, bottom, right = padding
            widths = [0, 0, 0, 0, top, bottom, left, right]
            x, padding = emit(op.nn.pad(x, widths, "constant", float(self.zero))), (0, 0, 0, 0)
        given = self.stride, padding, self.dilation, self.groups
        y = emit(op.nn.conv2d(x, w, *given, out_dtype=self.out_dtype))
        y = emit(op.add(y, b))
        if residual is not None:
            y = emit(op.add(y, unblock(emit, residual, self.k) if self.block_out else residual))
        y = emit(op.nn.relu(y))
        return block(emit, y, self.block_out) if self.block_out else y

    def reference(self, x, residual=None):
        w, b = (a.astype("float64") for a in self.weights())
        y = convolve(x.astype("float64") - self.zero, w, self) + b
        sums = self.zero * w.sum(axis=(1, 2, 3))
        y += sums.reshape(1, -1, 1, 1)
        return np.maximum(y if residual is None else y + residual, 0)


def may_be_refused(conv):
    """Whether bounds of the padding may simplify to bounds of pixels or of the window alone.

    So they do in tiny images, and where the window is no larger than the stride.
    """
    tiny = min(*conv.size, *conv.out_size) <= 4
    return tiny or any(r <= s for r, s in zip(conv.window, conv.stride, strict=True) if s > 1)


def convolve(x, w, conv):
    top, left, bottom, right = conv.padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    rows, columns = conv.out_size
    n, c, g = x.shape[0], conv.c // conv.groups, conv.groups
    y = np.zeros((n, g, conv.k // g, rows, columns))
    w = w.reshape(g, conv.k // g, c, *conv.window)
    for r in range(conv.window[0]):
        for s in range(conv.window[1]):
            at = r * conv.dilation[0], s * conv.dilation[1]
            part = x[
                :,
                :,
                at[0] : at[0] + (rows - 1) * conv.stride[0] + 1 : conv.stride[0],
                at[1] : at[1] + (columns - 1) * conv.stride[1] + 1 : conv.stride[1],
            ].reshape(n, g, c, rows, columns)
            y += np.einsum("ngchw,gkc->ngkhw", part, w[..., r, s])
    return y.reshape(n, conv.k, rows, columns)


def blocked_shape(shape, lanes):
    n, c, h, w = shape
    return n, -(-c // lanes), h, w, lanes


def unblock(emit, x, c):
    n, _, h, w, lanes = (int(d) for d in x.ty.shape)
    return emit(
        relax.BlockBuilder.current().call_te(
            lambda a: te.compute(
                (n, c, h, w), lambda i, k, y, z: a[i, k // lanes, y, z, k % lanes], name="unblock"
            ),
            x,
        )
    )


def block(emit, y, lanes):
    n, c, h, w = (int(d) for d in y.ty.shape)
    zero = tirx.const(0, str(y.ty.dtype.dtype))

    def element(a, i, k, y, x, lane):
        inside = a[i, k * lanes + lane, y, x]
        return inside if c % lanes == 0 else tirx.if_then_else(k * lanes + lane < c, inside, zero)

    shape = blocked_shape((n, c, h, w), lanes)
    return emit(
        relax.BlockBuilder.current().call_te(
            lambda a: te.compute(shape, lambda *at: element(a, *at), name="block"), y
        )
    )


def to_blocks(a, lanes):
    """Numpy's form of :func:`block`."""
    n, c, h, w = a.shape
    padded = np.zeros((n, -(-c // lanes) * lanes, h, w), a.dtype)
    padded[:, :c] = a
    return np.ascontiguousarray(padded.reshape(n, -1, lanes, h, w).transpose(0, 1, 3, 4, 2))


def from_blocks(a):
    n, blocks, h, w, lanes = a.shape
    return a.transpose(0, 1, 4, 2, 3).reshape(n, blocks * lanes, h, w)


def claimed(params, body, spec=CPU):
    members = group(params, body, spec)
    claim = CpuConvolution().claim(members, spec.device)
    assert isinstance(claim, Claim), claim
    return claim


def other_tiles(conv):
    """Claims with tiles that the model would not choose, with remainders in all directions."""
    claim = claimed(conv.params(), conv.body)
    lanes = claim.details.config.lanes
    for tile in ((2, 4, 3, 2, 1), (1, 11, 1, 5, 3)):  # rows, pixels, vectors, band, chunk
        yield replace(claim, details=replace(claim.details, config=ConvConfig(lanes, *tile)))


def run(claim, inputs, spec=CPU, results=None):
    """Call the kernel with packed constants and poisoned results, unless they are given."""
    members, target = claim.group, spec.tvm_target()
    emission = CpuConvolution().emit(claim, target)
    (made,) = emission.kernels
    functions = {"main": made.func.with_attr("global_symbol", "main")}
    for position, packing in emission.packing.items():
        func = schedule_cpu(packing, target).mod["main"]
        functions[f"pack{position}"] = func.with_attr("global_symbol", f"pack{position}")
    built = tvm.compile(tvm.IRModule(functions), target, tir_pipeline="tvm_fusion")
    passed = []
    for position, value in enumerate(members.inputs):
        array = inputs[value.name] if value.constant is None else value.constant.value
        array = tvm.runtime.tensor(array) if isinstance(array, np.ndarray) else array
        if position in emission.packing:
            shape = [int(d) for d in emission.packing[position].params[-1].ty.shape]
            dtype = str(emission.packing[position].params[-1].ty.dtype)
            packed = tvm.runtime.tensor(poison(shape, dtype))
            built[f"pack{position}"](array, packed)
            gathered = gather(emission.packing[position], array)
            is_winograd = isinstance(claim.details.config, WinogradConfig)
            is_widened = str(array.dtype) != dtype
            if is_winograd or is_widened or claim.details.problem.words:  # the weight is computed
                assert gathered is None
            else:
                np.testing.assert_array_equal(gathered.numpy(), packed.numpy())
            array = packed
        passed.append(array)
    results = results or [
        tvm.runtime.tensor(poison(extents(v.type), v.dtype)) for v in members.outputs
    ]
    built["main"](*passed, *results)
    return [r.numpy() for r in results]


def poison(shape, dtype):
    is_integer = dtype.startswith(("int", "uint"))
    return np.full(shape, 99 if is_integer else np.nan).astype(dtype)


# Half types round a sum, of up to 8, and once more when the bias is added; bytes are exact.
TOLERANCES = {
    "float32": {"atol": 2e-5, "rtol": 0},
    "float16": {"atol": 2.0**-9, "rtol": 2.0**-11},
    "bfloat16": {"atol": 2.0**-6, "rtol": 2.0**-8},
    "uint8": {"atol": 0, "rtol": 0},
    "int16": {"atol": 0, "rtol": 0},
}


def check(conv, spec=CPU, prologue=None, claim=None):
    """Compare a kernel with float64; lanes beyond the channels must be zero."""
    if claim is None:
        claim = claimed(
            conv.params(),
            lambda emit, *xs: conv.body(
                emit, *xs, **({"prologue": prologue[0]} if prologue else {})
            ),
            spec,
        )
    x = conv.image()
    inputs = {"x": to_blocks(x, conv.block_in) if conv.block_in else x}
    residual = None
    if conv.residual:
        shape = (conv.batch, conv.k, *conv.out_size)
        residual = np.random.default_rng(2).standard_normal(shape).astype("float32")
        inputs["r"] = to_blocks(residual, conv.block_out) if conv.block_out else residual
    (y,) = run(claim, inputs, spec)
    y = from_blocks(y) if conv.block_out else y
    expected = conv.reference(x if prologue is None else prologue[1](x), residual)
    found = y[:, : conv.k].astype("float64")
    np.testing.assert_allclose(found, expected, **TOLERANCES[conv.dtype])
    np.testing.assert_array_equal(y[:, conv.k :].astype("float64"), 0)
    return claim
