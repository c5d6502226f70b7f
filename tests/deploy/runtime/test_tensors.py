import ml_dtypes
import numpy as np
import pytest
import tvm_ffi

from tvm_fusion.deploy.runtime import load
from tvm_fusion.deploy.runtime.tensors import (
    ALIGNMENT,
    aligned_empty,
    as_array,
    to_numpy,
    to_tensor,
)
from tvm_fusion.deploy.runtime.tensors import write_into as write
from tvm_fusion.errors import UserError

CPU = tvm_ffi.device("cpu", 0)


@pytest.fixture(autouse=True, scope="module")
def runtime():
    load._open_library("tvm_runtime")


class Producer:
    """What every framework's arrays have in common."""

    def __init__(self, array, copies=0):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def through(value, dtype="float32"):
    return to_tensor(as_array(value, dtype, "input 'x'"), CPU, "input 'x'")


def aligned(values):
    array = aligned_empty(values.shape, values.dtype)
    array[...] = values
    return array


VALUES = np.arange(24, dtype="float32").reshape(4, 6)
ODD = np.frombuffer(bytearray(101), np.uint8)[5:].view("float32")


@pytest.mark.parametrize(
    "array",
    [
        aligned(VALUES),
        VALUES[:, ::2],
        VALUES.T,
        VALUES[::-1],
        np.broadcast_to(VALUES[0], (3, 6)),  # read-only, too
        ODD,
        np.float32(2),
        np.zeros((0, 3), "float32"),
    ],
    ids=["plain", "strided", "transposed", "reversed", "broadcast", "odd", "0d", "empty"],
)
def test_any_memory_layout_arrives_contiguous_and_aligned(array):
    tensor = through(array)
    assert tensor.is_contiguous()
    assert tensor.numel() == 0 or tensor.data_ptr() % ALIGNMENT == 0
    np.testing.assert_array_equal(to_numpy(tensor), array)


@pytest.mark.parametrize("array", [VALUES[:, ::2], VALUES.T, VALUES[::-1], ODD])
def test_any_memory_layout_arrives_through_dlpack(array):
    tensor = through(Producer(array))
    assert tensor.is_contiguous()
    assert tensor.data_ptr() % ALIGNMENT == 0
    np.testing.assert_array_equal(to_numpy(tensor), array)


def test_aligned_memory_is_not_copied():
    array = aligned(VALUES)
    assert through(array).data_ptr() == array.ctypes.data
    assert through(Producer(array)).data_ptr() == array.ctypes.data
    assert np.shares_memory(to_numpy(through(array)), array)


def test_the_bits_of_bfloat16_travel_without_a_copy():
    array = aligned(VALUES.astype(ml_dtypes.bfloat16))
    tensor = through(array, "bfloat16")
    assert (str(tensor.dtype), tensor.data_ptr()) == ("bfloat16", array.ctypes.data)
    back = to_numpy(tensor)
    assert back.dtype == ml_dtypes.bfloat16
    assert np.shares_memory(back, array)
    del array
    np.testing.assert_array_equal(back.astype("float32"), VALUES)


def test_a_tensor_keeps_the_memory_alive():
    tensor = through(aligned(VALUES.astype(ml_dtypes.bfloat16)), "bfloat16")
    for _ in range(8):  # whoever freed the memory would see it written
        aligned(np.full_like(VALUES, -1).astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(to_numpy(tensor).astype("float32"), VALUES)


@pytest.mark.parametrize(
    ("value", "wanted", "dtype"),
    [
        (2.0, "float32", "float32"),
        ([1, 2], "float16", "float16"),
        ([[1.5]], "bfloat16", "bfloat16"),
        (True, "bool", "bool"),
        (3, "int32", "int32"),
        (1.5, "int64", "float64"),
        (1, "bool", "int64"),
        (np.float32(1), "float16", "float32"),
    ],
)
def test_only_pythons_own_numbers_take_the_wanted_dtype(value, wanted, dtype):
    assert str(as_array(value, wanted, "x").dtype) == dtype


class Stubborn:
    def __dlpack__(self, **options):
        raise BufferError("needs gradients\nand more")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Stubborn(), r"input 'x' is a Stubborn without usable data \(needs gradients\)\."),
        ([[1], [1, 2]], "input 'x' is a list without usable data"),
    ],
)
def test_what_is_no_array_is_named(value, words):
    with pytest.raises(UserError, match=words):
        through(value)


def test_strided_bfloat16_behind_dlpack_is_refused():
    class Strided:
        is_contiguous = staticmethod(lambda: False)
        __dlpack__ = Stubborn.__dlpack__
        __dlpack_device__ = staticmethod(lambda: (1, 0))

    with pytest.raises(UserError, match="input 'x' is not contiguous"):
        to_tensor(Strided(), CPU, "input 'x'")


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_results_are_written_into_numpy_and_other_arrays(order):
    for wrap in (lambda a: a, Producer):
        target = np.zeros_like(VALUES)
        write(wrap(target[:, order]), VALUES, "y")
        np.testing.assert_array_equal(target[:, order], VALUES)


def test_read_only_memory_is_refused():
    array = np.zeros(3)
    array.flags.writeable = False
    with pytest.raises(UserError, match=r"y is read-only; expected memory that may be written to"):
        write(array, np.ones(3), "y")
