"""Programs of half types from PyTorch keep their types."""

import numpy as np
import pytest

import tvm_fusion
from tvm_fusion._tvm_half import half_results

pytestmark = pytest.mark.torch


@pytest.fixture
def program():
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv1d(3, 8, 3)
            self.dense = torch.nn.Linear(5, 4)

        def forward(self, x):
            return torch.cat([self.dense(self.conv(x)), x[:, :, :4]], 1)

    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(2, 3, 7)
    exact = net.double()(x.half().double())
    net = net.half()
    return torch.export.export(net, (x.half(),)), x.half().numpy(), exact.detach().numpy()


def test_products_and_convolutions_stay_half(program, tmp_path):
    exported, x, exact = program
    executable = tvm_fusion.load(tvm_fusion.compile(exported).export(tmp_path / "half"))
    (result,) = executable(x=x).values()
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, exact, atol=4e-3)


def test_tvm_still_gives_float32(program):
    """Fails when TVM types them as PyTorch does: then the workaround can go."""
    from tvm.relax.frontend.torch import from_exported_program

    exported = program[0].run_decompositions()
    with pytest.raises(TypeError, match=r"same (datatype|dtype)"):
        from_exported_program(exported)
    with half_results():
        from_exported_program(exported)
