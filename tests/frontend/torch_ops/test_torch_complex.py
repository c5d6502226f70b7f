"""Fourier transforms, and complex tensors as pairs of real ones."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.frontend.torch_functions import Functions  # noqa: E402
from tvm_fusion.core.decisions import recording  # noqa: E402
from tvm_fusion.frontend import import_model  # noqa: E402

fft = torch.fft
pytestmark = pytest.mark.torch


def plain(tensor):
    tensor = tensor.resolve_conj()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def check(run, functions, *arguments, rtol=1e-4, atol=1e-4):
    module = Functions(*functions)
    program = torch.export.export(module, arguments)
    results = run(import_model(program).mod, *(plain(a).numpy() for a in arguments))
    results = results if isinstance(results, list) else [results]
    wide = [a.to(torch.complex128) if a.is_complex() else a.double() for a in arguments]
    for number, (result, wanted) in enumerate(zip(results, module(*wide), strict=True)):
        np.testing.assert_allclose(result, plain(wanted).numpy(), rtol, atol, err_msg=str(number))


def test_transforms(run):
    torch.manual_seed(0)
    functions = [
        lambda x: fft.fft(x).abs(),
        lambda x: fft.rfft(x, norm="ortho"),
        lambda x: fft.rfft(x, dim=0),
        lambda x: fft.irfft(fft.rfft(x), n=15),
        lambda x: fft.irfft(fft.rfft(x)[..., :5]),
        lambda x: fft.rfft2(x),
        lambda x: fft.irfft2(fft.rfft2(x), s=(6, 15), norm="backward"),
        lambda x: fft.ifft2(fft.fft2(x)).real,
        lambda x: fft.hfft(x, norm="forward"),
        lambda x: fft.fftshift(x),
    ]
    check(run, functions, torch.randn(6, 15))


@pytest.mark.parametrize("length", [384, 1000, 394])  # three factors, 8 x 125, 2 x 197
def test_large_lengths_are_split(run, length):
    torch.manual_seed(1)
    functions = [
        lambda x: fft.fft(x),
        lambda x: fft.ifft(x[..., :300]),
        lambda x: fft.rfft(x),
        lambda x: fft.irfft(fft.rfft(x) * 2, n=x.shape[-1]),
    ]
    check(run, functions, torch.randn(2, length), atol=1e-3)


def test_rotary_embedding_by_complex_numbers(run):
    class Rotary(torch.nn.Module):
        def __init__(self):
            super().__init__()
            angles = torch.outer(torch.arange(7.0), 10.0 ** -torch.arange(0, 1, 0.25))
            self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles))

        def forward(self, x):
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * self.turn).flatten(2)

    module, x = Rotary(), torch.randn(2, 7, 8)
    result = run(import_model(torch.export.export(module, (x,))).mod, x.numpy())
    np.testing.assert_allclose(result, module(x).numpy(), 1e-5, 1e-6)


def test_complex_inputs_and_outputs_are_told():
    x = torch.randn(3, dtype=torch.complex64)
    with recording() as decisions:
        imported = import_model(torch.export.export(Functions(lambda x: x * 2), (x,)))
    told = [d.sentence for d in decisions if d.code == "complex_as_pairs"]
    assert len(told) == 2
    assert "last axis of two" in told[0]
    (spec,) = imported.signatures["main"].inputs
    assert (spec.shape, spec.dtype) == ((3, 2), "float32")
