"""Float8 tensors of exported programs."""

import pytest

torch = pytest.importorskip("torch")

from tvm_fusion.config import FusionConfig  # noqa: E402
from tvm_fusion.frontend import import_model  # noqa: E402

pytestmark = pytest.mark.torch


class Linear(torch.nn.Module):
    def forward(self, x, w):
        return (x.float() @ w.float().T).half()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_inputs(dtype):
    given = tuple(torch.randn(4, 8).to(getattr(torch, dtype)) for _ in range(2))
    imported = import_model(torch.export.export(Linear(), given), FusionConfig())
    assert {spec.dtype for spec in imported.signatures["main"].inputs} == {dtype}
