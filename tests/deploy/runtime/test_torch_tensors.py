"""Calls with PyTorch's tensors, whose memory is shared."""

from types import SimpleNamespace

import numpy as np
import pytest
import tvm_ffi
from onnx import TensorProto as T
from tiny_models import dense_data, onnx_model

import tvm_fusion
from tvm_fusion.deploy.runtime import torch_tensors
from tvm_fusion.errors import UserError

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def dense(dense_folder):
    return tvm_fusion.load(dense_folder)


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.T.contiguous().T, lambda t: t[1:]])
def test_tensors_of_any_layout(dense, view):
    data = view(torch.from_numpy(dense_data(4)))
    expected = dense(data=data.numpy())["scores"]
    target = torch.zeros(expected.shape[::-1]).T
    outputs = dense(data=data, out={"scores": target})
    assert outputs["scores"] is target
    np.testing.assert_array_equal(target.numpy(), expected)


def test_a_tensor_that_requires_gradients_is_only_read(dense):
    data = torch.from_numpy(dense_data(2)).requires_grad_()
    expected = dense(data=dense_data(2))["scores"]
    np.testing.assert_array_equal(dense(data=data)["scores"].numpy(), expected)


def unaligned(tensor):
    """Copy a tensor to where none of its elements is aligned."""
    memory = torch.zeros(4 * tensor.numel() + 1, dtype=torch.uint8).numpy()[1:]
    copy = torch.frombuffer(memory, dtype=tensor.dtype).reshape(tensor.shape)
    return copy.copy_(tensor)


@pytest.mark.parametrize(
    "made",
    [
        lambda t: torch.complex(t, -t).conj().imag,  # negated when it is read
        unaligned,
        lambda t: torch.nn.Parameter(t),
        lambda t: torch.nn.Parameter(t, requires_grad=False),
    ],
)
def test_tensors_that_are_no_plain_memory(dense, made):
    data = made(torch.from_numpy(dense_data(2)))
    expected = dense(data=data.detach().resolve_neg().numpy().copy())["scores"]
    assert data.shape[0] == len(expected)
    np.testing.assert_array_equal(dense(data=data)["scores"].numpy(), expected)


def test_bfloat16(tmp_path):
    model = onnx_model(
        [("Add", ["x", "x"], ["y"])], [("x", T.BFLOAT16, [2, 3])], [("y", T.BFLOAT16, [2, 3])]
    )
    executable = tvm_fusion.load(tvm_fusion.compile(model).export(tmp_path / "a"))
    x = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    target = torch.zeros_like(x)
    executable(x=x, out={"y": target})
    assert torch.equal(target, x + x)
    with pytest.raises(UserError, match="input 'x' is not contiguous"):
        executable(x=x.reshape(3, 2).T)
    with pytest.raises(UserError, match="the array for output 'y' is not contiguous"):
        executable(x=x, out={"y": target.reshape(3, 2).T})


def test_tensors_give_tensors_and_arrays_arrays(dense):
    data = torch.from_numpy(dense_data(3))
    found, expected = dense(data)["scores"], dense(data.numpy())["scores"]
    assert type(found) is torch.Tensor
    assert type(expected) is np.ndarray
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.bool])
def test_a_result_is_a_tensor_over_its_memory(dtype):
    from tvm_fusion.deploy.runtime.torch_tensors import from_torch, to_torch

    tensor = torch.ones(2, 3).to(dtype)
    array = from_torch(torch, tensor)
    if isinstance(array, np.ndarray):
        again = to_torch(torch, array)
        assert (again.dtype, again.data_ptr()) == (dtype, tensor.data_ptr())
    array = np.ones((2, 3), str(dtype).removeprefix("torch."))  # of ml_dtypes where numpy has none
    again = to_torch(torch, array)
    assert (again.dtype, again.data_ptr()) == (dtype, array.ctypes.data)
    assert torch.equal(again, tensor)


class _Stream:
    def __init__(self, number: int, waits: list[tuple[int, int]]) -> None:
        self.cuda_stream, self._waits = number, waits

    def wait_stream(self, other: "_Stream") -> None:
        self._waits.append((self.cuda_stream, other.cuda_stream))


@pytest.mark.parametrize(
    ("chosen", "is_capturing", "seen", "waits"),
    [
        (0, False, 0, [(0, 7), (7, 0)]),
        (0, True, 7, []),  # a graph takes no other stream
        (7, False, 7, []),
    ],
)
def test_kernels_are_in_order_with_the_current_stream(chosen, is_capturing, seen, waits):
    found: list[tuple[int, int]] = []
    cuda = SimpleNamespace(
        current_stream=lambda _: _Stream(7, found),
        default_stream=lambda _: _Stream(0, found),
        is_current_stream_capturing=lambda: is_capturing,
    )
    device = tvm_ffi.device("cuda", 0)
    with (
        tvm_ffi.use_raw_stream(device, chosen),
        torch_tensors.in_order(SimpleNamespace(cuda=cuda), device),
    ):
        assert tvm_ffi.get_raw_stream(device) == seen
    assert found == waits
