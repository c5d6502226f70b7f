"""What PyTorch computes as one operator over a half type is rounded once, where it ends."""

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


class Composed(nn.Module):
    """Operators that torch decomposes, or a converter composes, of a tensor and its half."""

    def forward(self, x):
        """Apply each."""
        y, functional = x.roll(1, 0), nn.functional
        return (
            functional.cosine_similarity(x, y),
            functional.mse_loss(x, y),
            functional.hardswish(x),
            torch.renorm(x, 2, 0, 1.0),
            torch.linalg.vector_norm(x, dim=1),
            torch.cdist(x, y),
            torch.logsumexp(x, 1),
            torch.hypot(x, y),
            functional.softplus(x),
            x.var(1),
            torch.tanh(x),
            torch.sigmoid(x),
        )


class ComposedInPython(nn.Module):
    """Functions that torch writes in Python, and additions to one place."""

    def forward(self, x, index):
        """Apply each."""
        functional, y = nn.functional, x.roll(1, 0)
        return (
            functional.local_response_norm(x[None], 3),
            functional.tanhshrink(x),
            functional.multilabel_soft_margin_loss(x, y),
            functional.triplet_margin_with_distance_loss(x, y, x.roll(2, 0)),
            functional.normalize(x, 3.0),
            x.index_add(0, index, x.abs()),
            x.index_put((index,), x.abs(), accumulate=True),
            torch.std(x, 1),
            torch.std_mean(x, 0)[0],
            functional.selu(x),
        )


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


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("composed", [Composed, ComposedInPython])
def test_composed_operators_keep_the_range_of_float32(dtype, composed, tmp_path):
    torch.manual_seed(int(np.random.default_rng().integers(2**31)))
    module, x = composed(), torch.randn(6, 40).to(dtype)
    extra = (torch.zeros(6, dtype=torch.int64),) if composed is ComposedInPython else ()
    program = torch.export.export(module, (x, *extra))
    executable = tvm_fusion.load(tvm_fusion.compile(program, "cpu").export(tmp_path / "composed"))
    info = ml_dtypes.finfo(NUMPY[dtype])
    for size in (300.0, 1.0, 1e-4):
        drawn = (torch.randn(6, 40) * size).to(dtype)
        given = drawn.float().numpy().astype(NUMPY[dtype])
        arrays = {"x": given} | dict(zip(("index",), (e.numpy() for e in extra), strict=False))
        found = executable.run(arrays).values()
        exact, single = module(drawn.double(), *extra), module(drawn.float(), *extra)
        for place, (got, want, one) in enumerate(zip(found, exact, single, strict=True)):
            got, want = got.astype("float64"), want.numpy()
            # Two units in the last place, and what float32 loses by cancellation.
            lowest = np.log2(float(info.smallest_subnormal))
            unit = np.exp2(np.maximum(np.frexp(want)[1] - 1 - info.nmant, lowest))
            apart = np.abs(one.double().numpy() - want).max()
            beyond = np.abs(want) + 2 * unit > float(info.max)
            near = np.abs(got - want) <= 2 * unit + 16 * apart
            assert (near | (beyond & np.isinf(got))).all(), (place, size)


class Several(nn.Module):
    """Modules, each on its own input, so that one build does for all."""

    def __init__(self, modules):
        super().__init__()
        self.all = nn.ModuleList(modules)

    def forward(self, *inputs):
        """Call each."""
        return tuple(m(x) for m, x in zip(self.all, inputs, strict=True))


def test_the_program_stays_as_it_is(tmp_path):
    half = torch.ones(4, 8, dtype=torch.float16)
    program = torch.export.export(ComposedInPython(), (half, torch.tensor([0, 2, 0, 1])))
    before = program.graph_module.code
    tvm_fusion.compile(program)
    assert program.graph_module.code == before


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_running_sums_are_one_kernel(target):
    program = torch.export.export(CumSum(), (torch.randn(64, 96, dtype=torch.float16),))
    assert tvm_fusion.explain(program, target, stock=False).counts.kernels == 1


class Powers(nn.Module):
    """Roots and quotients of sums of powers."""

    def forward(self, x):
        """Apply each."""
        return (
            torch.linalg.vector_norm(x, dim=1),
            torch.linalg.vector_norm(x, 3, dim=1),
            torch.linalg.matrix_norm(x),
            nn.functional.cosine_similarity(x, x.roll(1, 0)),
            x.std(1),
            (x * 2.0**-70).var(1),
        )


@pytest.mark.parametrize("size", [1e37, 1e-30])
def test_powers_of_bfloat16_leave_the_range_of_float32(size, tmp_path):
    x = (torch.rand(4, 9) * size).to(torch.bfloat16)
    program = torch.export.export(Powers(), (x,))
    exe = tvm_fusion.load(tvm_fusion.compile(program).export(tmp_path / "powers"))
    for found, exact in zip(exe(x), Powers()(x.double()), strict=True):
        error = (found.double() - exact).abs().max()
        assert error <= 2.0**-7 * exact.abs().max() + 1e-38
