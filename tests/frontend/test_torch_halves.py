"""What PyTorch computes as one operator over a half type is rounded once, where it ends."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tvm_fusion

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.torch

NUMPY = {torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16}


class CumSum(nn.Module):
    """Running sums along rows."""

    def forward(self, x):
        """Add up."""
        return x.cumsum(-1)


class AddMM(nn.Module):
    """A product added to a tensor, each with its factor."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 17) / 5)
        self.bias = nn.Parameter(torch.randn(17))

    def forward(self, x):
        """Multiply and add."""
        return torch.addmm(self.bias, x, self.weight, beta=0.75, alpha=1.5)


MODULES = {
    "linear": (lambda: nn.Linear(24, 17), (5, 24)),
    "addmm": (AddMM, (5, 24)),
    "conv1d": (lambda: nn.Conv1d(6, 5, 3), (2, 6, 11)),
    "conv2d": (lambda: nn.Conv2d(6, 5, 3), (2, 6, 9, 7)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(6, 5, 3, 2), (1, 6, 5, 7)),
    "batch_norm": (lambda: nn.BatchNorm2d(6), (2, 6, 5, 7)),
    "group_norm": (lambda: nn.GroupNorm(3, 6), (2, 6, 5, 7)),
    "layer_norm": (lambda: nn.LayerNorm(24), (5, 24)),
    "cumsum": (CumSum, (5, 24)),
}


@pytest.mark.parametrize("dtype", NUMPY)
def test_rounds_once(dtype, tmp_path):
    torch.manual_seed(int(np.random.default_rng().integers(2**31)))
    modules = {name: make().eval().requires_grad_(False) for name, (make, _) in MODULES.items()}
    for parameter in [t for m in modules.values() for t in (*m.parameters(), *m.buffers())]:
        if parameter.ndim == 1:
            parameter.uniform_(0.5, 1.5)
    all_of_them = Several(modules.values()).to(dtype)
    inputs = tuple(torch.randn(shape, dtype=dtype) for _, shape in MODULES.values())
    program = torch.export.export(all_of_them, inputs)
    executable = tvm_fusion.load(tvm_fusion.compile(program, "cpu").export(tmp_path / "halves"))
    names = program.graph_signature.user_inputs
    arrays = {n: x.float().numpy().astype(NUMPY[dtype]) for n, x in zip(names, inputs, strict=True)}
    results = executable.run(arrays).values()
    expected = all_of_them.double()(*(x.double() for x in inputs))
    for name, result, exact in zip(MODULES, results, expected, strict=True):
        exact = exact.numpy()
        assert result.dtype == NUMPY[dtype], name
        error = np.abs(result.astype("float64") - exact)
        # One rounding, float32 on the way, and halves near zero, where they are spaced evenly.
        rounding = float(ml_dtypes.finfo(NUMPY[dtype]).eps) / 2 * np.abs(exact)
        rounding += 2e-6 * np.abs(exact).max() + 1e-7
        assert (error <= 1.01 * rounding).all(), name


class Several(nn.Module):
    """Modules, each on its own input, so that one build does for all."""

    def __init__(self, modules):
        super().__init__()
        self.all = nn.ModuleList(modules)

    def forward(self, *inputs):
        """Call each."""
        return tuple(m(x) for m, x in zip(self.all, inputs, strict=True))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_running_sums_are_one_kernel(target):
    program = torch.export.export(CumSum(), (torch.randn(64, 96, dtype=torch.float16),))
    assert tvm_fusion.explain(program, target, stock=False).counts.kernels == 1
