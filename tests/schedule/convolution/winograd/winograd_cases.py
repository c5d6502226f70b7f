"""Winograd convolutions: claims with their configurations, and the size of their rounding."""

import dataclasses

import numpy as np
from group_kernels import CPU
from rounding import assert_sums_close

from tests.schedule.convolution.conv_cases import claimed, from_blocks, run, to_blocks
from tvm_fusion.core.flags import APPROXIMATE
from tvm_fusion.device import parse
from tvm_fusion.schedule.convolution.winograd.config import WinogradConfig
from tvm_fusion.schedule.convolution.winograd.transforms import INPUT, OUTPUT, WEIGHT

# One CPU for what is chosen, whatever runs the tests.
DEFAULT = parse("cpu:x86-64-v4")
PERMITTED = DEFAULT.permitting([APPROXIMATE])


def as_winograd(claim, m, tiles=None, height=4, vectors=2, chunk=1):
    """Configure a convolution's claim as a Winograd kernel."""
    lanes = claim.details.config.lanes
    config = WinogradConfig(lanes, m, tiles or 5, height, vectors, chunk)
    return dataclasses.replace(claim, details=dataclasses.replace(claim.details, config=config))


def magnitude(m, x, w, padding):
    """Return what the rounding error of F(m x m, 3 x 3) is relative to, and how often it rounds.

    With exact matrices A^T and B^T (of integers) and ``|.|`` by element, a row of a transform of
    ``a = m + 2`` values takes up to ``2 a`` roundings, and all that it rounds on the way are parts
    of its sum: it is wrong by at most ``gamma(2 a) sum |row| |value|`` (Higham, "Accuracy and
    Stability of Numerical Algorithms", 3.1; gamma(n) = n u / (1 - n u)). So the transformed image,
    of rows and columns, is within ``gamma(4 a) |B^T| |d| |B|``, and results are within the same of
    ``|A^T| |P| |A|``; ``U`` is rounded once from float64, within ``gamma(1) |G| |w| |G^T|``, and
    products over C channels are summed within ``gamma(C)``. What one stage is relative to, put into
    the next, bounds them all, and their roundings add up (Lemma 3.3): a result is within
    ``gamma(8 a + C + 1)`` of

        |A^T| ( sum_c (|G| |w| |G^T|) * (|B^T| |d| |B|) ) |A|

    Parameters
    ----------
    m : int
        Rows and columns of a tile.
    x, w : numpy.ndarray
        Image and weight.
    padding : tuple of int
        Top, left, bottom, right.

    Returns
    -------
    size : numpy.ndarray
        That, of all results, in float64.
    roundings : int
        Their number.
    """
    a, c = m + 2, x.shape[1]
    at, bt, g = (np.abs(np.array(t[m], "float64")) for t in (OUTPUT, INPUT, WEIGHT))
    top, left, bottom, right = padding
    x = np.pad(np.abs(x.astype("float64")), ((0, 0), (0, 0), (top, bottom), (left, right)))
    out = [size - 2 for size in x.shape[2:]]
    grid = [-(-size // m) for size in out]
    more = [(0, n * m - size) for n, size in zip(grid, out, strict=True)]
    x = np.pad(x, ((0, 0), (0, 0), *more))
    u = np.einsum("ir,kcrs,js->kcij", g, np.abs(w.astype("float64")), g)
    found = np.empty((len(x), len(w), grid[0] * m, grid[1] * m))
    for row, column in np.ndindex(*grid):
        y, z = row * m, column * m
        v = np.einsum("ir,ncrs,js->ncij", bt, x[:, :, y : y + a, z : z + a], bt)
        p = np.einsum("kcij,ncij->nkij", u, v)
        found[:, :, y : y + m, z : z + m] = np.einsum("ir,nkrs,js->nkij", at, p, at)
    return found[:, :, : out[0], : out[1]], 8 * a + c + 1


def check(conv, m, spec=CPU, prologue=None, **sizes):
    """Compare a kernel with float64, within the bound; lanes beyond the channels must be zero."""
    write, compute = prologue or ((lambda emit, x: x), (lambda x: x))
    claim = claimed(conv.params(), lambda emit, *xs: conv.body(emit, *xs, prologue=write), spec)
    x = conv.image()
    inputs, residual = {"x": to_blocks(x, conv.block_in)}, None
    if conv.residual:
        shape = (conv.batch, conv.k, *conv.out_size)
        residual = np.random.default_rng(2).standard_normal(shape).astype("float32")
        inputs["r"] = to_blocks(residual, conv.block_out)
    (y,) = run(as_winograd(claim, m, **sizes), inputs, spec)
    y = from_blocks(y)
    size, roundings = magnitude(m, compute(x), conv.weights()[0], conv.padding)
    size += np.abs(conv.weights()[1]) + (0 if residual is None else np.abs(residual))
    # Bias and residual are added; ReLU brings a result no further from the exact one.
    found, exact = y[:, : conv.k], conv.reference(compute(x), residual)
    assert_sums_close(found, exact, size, roundings + 2)
    np.testing.assert_array_equal(y[:, conv.k :], 0)
