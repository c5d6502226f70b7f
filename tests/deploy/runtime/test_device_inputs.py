"""Tensors that go to a device's kernels as they are, and all that take the general way."""

import numpy as np
import pytest
import tvm_ffi

from tvm_fusion.deploy.runtime.direct import DeviceInputs
from tvm_fusion.deploy.runtime.tensors import aligned_empty, to_tensor
from tvm_fusion.signature import TensorSpec

CPU = tvm_ffi.device("cpu", 0)
SPECS = (TensorSpec("x", (3, 5), "float32"), TensorSpec("ids", (7,), "int64"))


class Foreign:
    """Another framework's tensor: DLPack is all that is known of it."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Closed(Foreign):
    """One that hands out no memory."""

    def __dlpack__(self, **options):
        raise BufferError("it needs a gradient")


def arrays():
    found = {"x": ((3, 5), "float32"), "ids": ((7,), "int64")}
    return {name: aligned_empty(shape, np.dtype(dtype)) for name, (shape, dtype) in found.items()}


def tensors():
    return {name: to_tensor(array, CPU) for name, array in arrays().items()}


def test_tensors_in_any_order_come_in_call_order():
    given = tensors()
    taken = DeviceInputs(SPECS, CPU).take({"ids": given["ids"], "x": given["x"]})
    assert taken[0] is given["x"]
    assert taken[1] is given["ids"]


def test_another_frameworks_tensors_are_read_where_they_lie():
    given = arrays()
    taken = DeviceInputs(SPECS, CPU).take({name: Foreign(a) for name, a in given.items()})
    assert [t.data_ptr() for t in taken] == [given["x"].ctypes.data, given["ids"].ctypes.data]


@pytest.mark.parametrize(
    "change",
    [
        {"x": aligned_empty((3, 5), np.dtype("float32"))},
        {"x": 1.0},
        {"x": Foreign(aligned_empty((5, 3), np.dtype("float32")))},
        {"x": Foreign(aligned_empty((3, 5), np.dtype("int32")))},
        {"x": Foreign(aligned_empty((5, 3), np.dtype("float32")).T)},
        {"x": Foreign(aligned_empty((16,), np.dtype("float32"))[1:].reshape(3, 5))},
        {"x": Closed(aligned_empty((3, 5), np.dtype("float32")))},
        {"y": Foreign(aligned_empty((3, 5), np.dtype("float32")))},
    ],
    ids=["numpy", "number", "shape", "dtype", "strided", "unaligned", "closed", "more"],
)
def test_all_others_take_the_general_way(change):
    assert DeviceInputs(SPECS, CPU).take({**tensors(), **change}) is None


def test_missing_names_mappings_other_devices_and_symbolic_shapes():
    given = tensors()
    assert DeviceInputs(SPECS, CPU).take({"x": given["x"]}) is None
    assert DeviceInputs(SPECS, CPU).take({"x": given["x"], "z": given["ids"]}) is None
    assert DeviceInputs(SPECS, CPU).take([given]) is None
    assert DeviceInputs(SPECS, tvm_ffi.device("cuda", 0)).take(given) is None
    symbolic = (TensorSpec("x", ("n", 5), "float32"), SPECS[1])
    assert DeviceInputs(symbolic, CPU).take(given) is None
