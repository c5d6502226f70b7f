"""Scatters with reductions, ranks, running values, segments and bits, against torch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.frontend.torch_functions import Functions  # noqa: E402
from tvm_fusion.frontend import import_model  # noqa: E402

F = torch.nn.functional
pytestmark = pytest.mark.torch


def check(run, functions, *arguments, rtol=1e-5, atol=1e-5):
    module = Functions(*functions)
    results = run(
        import_model(torch.export.export(module, arguments)).mod, *(a.numpy() for a in arguments)
    )
    for number, (result, wanted) in enumerate(zip(results, module(*arguments), strict=True)):
        np.testing.assert_allclose(result, wanted.numpy(), rtol, atol, err_msg=str(number))


def test_reductions_at_computed_places(run):
    torch.manual_seed(0)
    x, y, i = torch.randn(5, 7), torch.randn(5, 7), torch.randint(0, 5, (5, 7))
    how = ["sum", "prod", "amax", "amin", "mean"]
    functions = [
        *(lambda x, y, i, h=h: x.scatter_reduce(0, i, y, h) for h in how),
        *(lambda x, y, i, h=h: x.scatter_reduce(0, i, y, h, include_self=False) for h in how),
        *(lambda x, y, i, h=h: x.index_reduce(0, i[0, :5], y, h) for h in (*how[1:], "prod")),
        lambda x, y, i: x.index_reduce(0, i[0, :5], y, "mean", include_self=False),
        lambda x, y, i: x.scatter(1, i, 2.0, reduce="add"),
        lambda x, y, i: x.put(i - 3, y, accumulate=True),
        lambda x, y, i: x.as_strided_scatter(y[0, :3], (3,), (8,), 2),
        lambda x, y, i: i.scatter_reduce(0, i, i * 3, "mean"),
    ]
    check(run, functions, x, y, i)


def test_ranks(run):
    torch.manual_seed(1)
    x, i = torch.randn(4, 9), torch.randint(-3, 3, (4, 9))
    x[0, 3] = x[2, :5] = np.nan
    steps = torch.randn(4, 6).sort(1).values
    functions = [
        lambda x, i, s: i.mode(1).values,
        lambda x, i, s: i.mode(0, keepdim=True).values,
        lambda x, i, s: torch.searchsorted(s, x[:, :2]),
        lambda x, i, s: torch.searchsorted(s, i.float(), side="right"),
        lambda x, i, s: torch.searchsorted(s[1], i.float(), out_int32=True),
        lambda x, i, s: torch.histc(s, 5),
        lambda x, i, s: torch.histc(i.float(), 4, -2, 2),
        lambda x, i, s: torch.nonzero_static(i, size=7),
        lambda x, i, s: torch.nonzero_static(i > 1, size=40, fill_value=-9),
        lambda x, i, s: x.cummax(1).values,
        lambda x, i, s: i.cummin(0).indices,
        lambda x, i, s: s.logcumsumexp(0),
        lambda x, i, s: torch.cat([s, s * -np.inf]).logcumsumexp(1),
        lambda x, i, s: torch.pdist(s),
    ]
    check(run, functions, x, i, steps)


def test_bags_and_segments(run):
    torch.manual_seed(2)
    w, i = torch.randn(11, 5), torch.randint(0, 11, (13,))
    offsets, scale = torch.tensor([0, 4, 4, 9]), torch.rand(13)
    ends = torch.tensor([0, 5, 5, 13])

    def bag(**options):
        return lambda w, i, o, s, e: F.embedding_bag(i, w, o, **options)

    functions = [
        bag(mode="sum"),
        bag(mode="mean", padding_idx=3),
        bag(mode="max"),
        bag(mode="sum", include_last_offset=True),
        lambda w, i, o, s, e: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s),
        lambda w, i, o, s, e: torch.segment_reduce(s, "mean", offsets=e),
        lambda w, i, o, s, e: torch.segment_reduce(w, "max", lengths=torch.tensor([4, 0, 7])),
        lambda w, i, o, s, e: F.bilinear(w[:3], w[3:6], w[:5].reshape(1, 5, 5)),
    ]
    check(run, functions, w, i, offsets, scale, ends)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_of_numbers(run, dtype):
    values = [0.0, -0.0, 1.0, -1.0, 3e-42, 1.5e-39, -2.75e8, np.inf, -np.inf, np.nan, 0.1, 1e38]
    x = torch.tensor(values, dtype=getattr(torch, dtype))
    functions = [
        lambda x: torch.frexp(x).mantissa,
        lambda x: torch.frexp(x).exponent,
        lambda x: torch.nextafter(x, torch.ones_like(x)),
        lambda x: torch.nextafter(x, -x),
    ]
    check(run, functions, x, rtol=0, atol=0)


def test_integers(run):
    x = torch.tensor([12, -18, 0, 7, 2**40, -5, 1, -1])
    y = torch.tensor([18, 27, 5, 0, 2**33, 3, 70, 69])
    functions = [
        torch.gcd,
        lambda x, y: torch.lcm(x % 100, y % 100),
        lambda x, y: x ** (y % 7),
        lambda x, y: (x % 3) ** y,
        lambda x, y: torch.tensor([1, -1, 1, -1, 1, -1, 1, -1]) ** y,
        lambda x, y: torch.pow(3, y % 40),
    ]
    check(run, functions, x, y, rtol=0, atol=0)
