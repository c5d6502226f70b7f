"""The emulator runs warp-specialized kernels of mbarriers, TMA and wgmma, and finds mistakes."""

from types import SimpleNamespace

import numpy as np
import pytest
from emulator.launch import launch
from emulator.memory import EmulationError
from emulator.scalar_types import scalar_type
from emulator.tma import TensorMap
from emulator.wgmma_gemm import Gemm
from group_kernels import CUDA

TARGET = CUDA.tvm_target()
DEADLOCK = "deadlock: all roles wait"
EARLY_READ = "shared: read before its copy was waited for"
EARLY_WRITE = "shared: written (while products may still read it|before its copy was waited for)"


def relative_error(gemm):
    """Run a kernel; its error by the size of the terms."""
    rng, dtype = np.random.default_rng(gemm.m), scalar_type(gemm.dtype)
    shape = (gemm.n, gemm.k) if gemm.is_k_contiguous else (gemm.k, gemm.n)
    scale = 50 if gemm.sums == "int32" else 1
    a = (scale * rng.standard_normal((gemm.m, gemm.k))).astype(dtype)
    b = (scale * rng.standard_normal(shape)).astype(dtype)
    c = np.full((gemm.m, gemm.n), -1, gemm.sums)
    launch(gemm.kernel(), [a, b, c], TARGET)
    a, b = a.astype("float64"), b.astype("float64")
    b = b.T if gemm.is_k_contiguous else b
    return (np.abs(c - a @ b) / (np.abs(a) @ np.abs(b))).max()


@pytest.mark.parametrize(
    "gemm",
    [
        Gemm(128, 64, 192),
        Gemm(136, 72, 200),
        Gemm(136, 72, 200, is_k_contiguous=False),
        Gemm(300, 136, 264, False, "bfloat16", block_n=128, blocks=4),
        Gemm(130, 40, 72, stages=2, consumers=1, blocks=1),
        Gemm(136, 72, 272, dtype="float8_e4m3fn"),
        Gemm(136, 72, 272, dtype="float8_e5m2"),
        Gemm(136, 72, 272, dtype="int8"),
        Gemm(136, 72, 272, dtype="uint8"),
    ],
    ids=lambda gemm: f"{gemm.dtype}-{gemm.m}-{gemm.is_k_contiguous}",
)
def test_a_gemm(gemm):
    assert relative_error(gemm) < (1e-6 if gemm.sums == "float32" else 1e-15)


def test_float32_is_read_as_tfloat32():
    assert 1e-5 < relative_error(Gemm(136, 72, 100, dtype="float32")) < 2**-9


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8", "float32"])
def test_only_half_types_lie_along_columns(dtype):
    with pytest.raises(ValueError, match="contiguous along K alone"):
        relative_error(Gemm(128, 128, 128, is_k_contiguous=False, dtype=dtype, block_n=128))


MISTAKES = {
    "no expect_bytes": DEADLOCK,
    "arrive for expect_bytes": EARLY_READ,
    "too few bytes": EARLY_READ,
    "too many bytes": DEADLOCK,
    "no wait for full": EARLY_READ,
    "no wait for empty": EARLY_WRITE,
    "wrong parity": DEADLOCK,
    "no arrive": DEADLOCK,
    "too few arrivals counted": DEADLOCK,  # the producer misses a phase
    "empty before the wait": EARLY_WRITE,
    "wait for too few products": EARLY_WRITE,
    "release of the wrong stage": DEADLOCK,
    "one copy too many": "a block ends before a copy was waited for",
    "no wait for the last products": "acc: accumulators of products not waited for",
    "no fence": "no wgmma.fence",
    "no commit": EARLY_WRITE,
    "no fence of barriers": "without a fence behind its init",
    "no barrier of the block": "read without a barrier after the write",
    "unaligned box": "a box does not begin at a multiple of 128",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake(mistake):
    with pytest.raises(EmulationError, match=MISTAKES[mistake]):
        relative_error(Gemm(160, 40, 328, mistake=mistake))


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "int8", "float32"])
def test_a_wrong_step_of_a_descriptor(dtype):
    assert relative_error(Gemm(128, 64, 128, dtype=dtype, mistake="wrong step")) > 1e-2


def encoded(array, sizes, strides, box, offset=0, **changes):
    rank = len(sizes)
    attributes = dict(
        rank=rank, descriptor_dtype=str(array.dtype), interleave=0, swizzle=3, oob_fill=0
    )
    numbers = [*sizes, *strides, *box, *[1] * rank]
    return TensorMap.encoded(array, offset, numbers, SimpleNamespace(**(attributes | changes)))


def test_boxes_are_zero_outside():
    array = np.random.default_rng(5).standard_normal((3, 20, 72)).astype("float16")
    found = encoded(array, (70, 20, 3), (144, 2880), (64, 8, 2)).read([16, -3, 2])
    padded = np.zeros((4, 28, 88), "float16")
    padded[:3, 3:23, :70] = array[..., :70]
    np.testing.assert_array_equal(found.reshape(2, 8, 64), padded[2:4, :8, 16:80])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": (70, 20), "strides": (140,)}, "no multiples of 16"),
        ({"offset": 4}, "no multiples of 16"),
        ({"sizes": (72, 21)}, "reaches beyond its array"),
        ({"box": (32, 8)}, "without rows of 128 bytes"),
        ({"box": (64, 257)}, "out of range"),
        ({"swizzle": 0}, "without rows of 128 bytes"),
        ({"descriptor_dtype": "bfloat16"}, "another rank or type"),
    ],
)
def test_a_tensor_map_that_is_refused(changes, message):
    array = np.zeros((20, 72), "float16")
    given = {"sizes": (72, 20), "strides": (144,), "box": (64, 8)} | changes
    with pytest.raises(EmulationError, match=message):
        encoded(array, **given)
