"""PyTorch's operators with the arguments and dtypes that TVM's own importer gets wrong."""

import numpy as np
import pytest
from tvm import relax

import tvm_fusion
from tvm_fusion.core.decisions import recording
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model

torch = pytest.importorskip("torch")

from tests.frontend.torch_functions import Functions  # noqa: E402
from tvm_fusion.frontend.registry import Converter, Unsupported  # noqa: E402
from tvm_fusion.frontend.torch_ops import CONVERTERS, register  # noqa: E402  # imports torch

F = torch.nn.functional
pytestmark = pytest.mark.torch


def check(run, functions, *arguments, rtol=1e-4, atol=1e-5):
    module = Functions(*functions)
    imported = import_model(torch.export.export(module, arguments))
    results = run(imported.mod, *(a.numpy() for a in arguments))
    results = [results] if len(functions) == 1 and not isinstance(results, list) else results
    for number, (result, expected) in enumerate(zip(results, module(*arguments), strict=True)):
        assert str(result.dtype) == str(expected.dtype).removeprefix("torch."), number
        np.testing.assert_allclose(
            result, expected.numpy(), rtol, atol, err_msg=f"function {number}"
        )


def refused(function, *arguments, match):
    with pytest.raises(UserError, match=match):
        import_model(torch.export.export(Functions(function), arguments))


def test_integers_with_floating_point(run):
    functions = [
        lambda i, j: i * 0.5,
        lambda i, j: 0.5 - i,
        lambda i, j: i / 2,
        lambda i, j: i / j,
        lambda i, j: i < 0.5,
        lambda i, j: i * 2 < 5.5,
        lambda i, j: torch.where(i > 0, i, 0.5),
        lambda i, j: i.abs() ** 0.5,
        lambda i, j: torch.sqrt(i.abs()),
        lambda i, j: torch.exp(i),
        lambda i, j: torch.div(i, j, rounding_mode="trunc"),
        lambda i, j: torch.div(i, j, rounding_mode="floor"),
        lambda i, j: i % j,
        lambda i, j: torch.fmod(i, j),
        lambda i, j: i.clamp(min=0),
        lambda i, j: i**3,
        lambda i, j: i.clamp(max=2) + (i > 0),
    ]
    check(run, functions, torch.tensor([-5, 3, 8, 0]), torch.tensor([2, -2, 3, 5]))


def test_result_types_of_sums_and_products(run):
    i = torch.tensor([[2**31 + 1, -3, 5], [1, 0, 7]])
    functions = [
        lambda i: i @ i.T,
        lambda i: i.int().sum(),
        lambda i: (i > 0).sum(0),
        lambda i: torch.cumsum(i > 0, 1),
        lambda i: (i > 0).any(1),
        lambda i: i.argmax(1),
        lambda i: i.max(1).indices,
        lambda i: i.amax(),
        lambda i: (i > 0) + (i < 0),
        lambda i: (i % 7).to(torch.uint8).prod(1),
    ]
    check(run, functions, i)


def test_factors_and_scales(run):
    functions = [
        lambda x, y: torch.sub(x, y, alpha=3),
        lambda x, y: torch.add(x, y, alpha=-2),
        lambda x, y: torch.rsub(x, y, alpha=0.5),
        lambda x, y: F.elu(x, 0.7),
        lambda x, y: F.selu(x),
        lambda x, y: F.celu(x, 0.3),
        lambda x, y: F.leaky_relu(x, 0.2),
        lambda x, y: F.softplus(x, 2.0, 1.0),
        lambda x, y: torch.remainder(x, y),
    ]
    check(run, functions, torch.randn(3, 7), torch.randn(3, 7) + 3)


def test_what_is_no_number_is_carried_on(tmp_path):
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[3, nan, 1, 2, 0], [inf, 5, -inf, 2, 9], [nan, nan, inf, 1, -inf]])
    functions = [
        lambda x: x.median(),
        lambda x: x[1].median(),
        lambda x: x.median(0, keepdim=True).values,
        lambda x: x.median(1).values,
        lambda x: x.nanmedian(),
        lambda x: x.nanmedian(1).values,
        lambda x: x.kthvalue(4, 1).values,
        lambda x: torch.hypot(x, x.flip(1)),
        lambda x: torch.cdist(x, x.flip(1), p=0),
        lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0, 4.0])),
        lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0, 4.0]), right=True),
    ]
    module = Functions(*functions)
    artifact = tvm_fusion.compile(torch.export.export(module, (x,)))
    executable = tvm_fusion.load(artifact.export(tmp_path / "artifact"))
    results = executable(x)
    for number, (result, expected) in enumerate(zip(results, module(x), strict=True)):
        np.testing.assert_array_equal(result, expected, f"function {number}")


def test_running_and_middle_values_of_symbolic_lines(run):
    functions = [
        lambda x: x.median(),
        lambda x: x.median(0).values,
        lambda x: x.nanmedian(),
        lambda x: x.nanmedian(0, keepdim=True).values,
        lambda x: x.kthvalue(2, 0).values,
        lambda x: x.mode(0).values,
        lambda x: x.cummax(0).values,
        lambda x: x.cummin(1).indices,
        lambda x: torch.logcumsumexp(x, 0),
        lambda x: torch.searchsorted(x[:, 0].sort().values, x[:, 1].contiguous()),
        lambda x: torch.diagonal(x @ x.T),
        lambda x: x.unfold(0, 2, 1),
        lambda x: torch.slice_scatter(x, x[:1] * 2, 0, 1, 2),
        lambda x: torch.select_scatter(x, x[0] * 3, 0, -1),
        lambda x: torch.nn.functional.pad(x.T[None], (1, 1), mode="circular"),
    ]
    module, rows = Functions(*functions), torch.export.Dim("rows", min=2, max=16)
    program = torch.export.export(module, (torch.randn(5, 3),), dynamic_shapes=(({0: rows},),))
    mod = import_model(program).mod
    for count in (2, 9):
        x = torch.randn(count, 3)
        for result, expected in zip(run(mod, x.numpy()), module(x), strict=True):
            np.testing.assert_allclose(result, expected.numpy(), 1e-4, 1e-5)


def test_no_log_line_of_an_import_that_fails(capfd):
    def function(x):
        return torch.unique(x, dim=0)

    rows = torch.export.Dim("rows", min=2, max=16)
    program = torch.export.export(
        Functions(function), (torch.randn(5, 3),), dynamic_shapes=(({0: rows},),)
    )
    with pytest.raises(UserError, match="on a symbolic extent"):
        import_model(program)
    assert "BlockBuilder" not in capfd.readouterr().err


def test_casts_on_the_way_count(run):
    x = torch.randn(5, 7)
    functions = [
        lambda x: x.half().float(),
        lambda x: x.to(torch.int8).float(),
        lambda x: (x * 0.5).bool().float(),
    ]
    check(run, functions, x, rtol=0, atol=0)


def test_digits_that_our_own_kernels_keep(tmp_path):
    """Rounding to bfloat16 is no-one's to leave out; log1p and expm1 keep digits near zero."""
    module = Functions(
        lambda x: x.to(torch.bfloat16).float(),
        lambda x: (x.to(torch.bfloat16) + 1).float() * 3,
        lambda x: torch.expm1(x * 1e-5) * 1e5,
        lambda x: torch.log1p(x * 1e-5) * 1e5,
    )
    x = torch.randn(5, 7)
    program = torch.export.export(module, (x,))
    executable = tvm_fusion.load(tvm_fusion.compile(program).export(tmp_path / "artifact"))
    (name,) = (spec.name for spec in executable.signatures["main"].inputs)
    results = executable.run({name: x.numpy()}).values()
    exact = [t.double().numpy() for t in module(x)[:2]]
    exact += [np.expm1(x.double() * 1e-5) * 1e5, np.log1p(x.double() * 1e-5) * 1e5]
    tolerances = [0, 1e-2, 1e-5, 1e-5]
    for result, expected, rtol in zip(results, exact, tolerances, strict=True):
        np.testing.assert_allclose(result, expected, rtol, 1e-2 if rtol == 1e-2 else 0)


def test_resizing(run):
    functions = [
        lambda x: F.interpolate(x, size=(7, 3), mode="nearest"),
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
        lambda x: F.interpolate(x, scale_factor=1.7, mode="nearest"),
        lambda x: F.interpolate(x, size=(7, 3), mode="bilinear"),
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
        lambda x: F.interpolate(x, size=(9, 11), mode="bilinear", align_corners=True),
        lambda x: F.interpolate(x, size=(9, 11), mode="bicubic"),
        lambda x: F.interpolate(x, size=(3, 2), mode="bilinear", antialias=True),
    ]
    check(run, functions, torch.randn(1, 2, 5, 6))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_samples(run, padding):
    def sample(**options):
        return lambda x, g: F.grid_sample(x, g, padding_mode=padding, **options)

    functions = [sample(align_corners=False), sample(align_corners=True), sample(mode="nearest")]
    check(run, functions, torch.randn(1, 3, 4, 5), torch.rand(1, 5, 2, 2) * 2.4 - 1.2)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_samples_of_volumes(run, padding):
    def sample(**options):
        return lambda x, g: F.grid_sample(x, g, padding_mode=padding, **options)

    functions = [sample(align_corners=False), sample(mode="nearest", align_corners=True)]
    check(run, functions, torch.randn(2, 3, 3, 4, 5), torch.rand(2, 1, 4, 2, 3) * 2.4 - 1.2)


def test_pools(run):
    functions = [
        lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[0],
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[1],
        lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True),
        lambda x: F.adaptive_max_pool2d(x, (3, 2)),
        lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    ]
    check(run, functions, torch.randn(1, 2, 7, 9))


def test_windows_beyond_the_image(run):
    functions = [
        lambda x: F.avg_pool2d(x, (4, 20), (3, 20), (2, 9), ceil_mode=True),
        lambda x: F.avg_pool2d(x, 9, 2, 4, ceil_mode=True, count_include_pad=False),
        lambda x: F.avg_pool2d(x, 12, 3, 5, ceil_mode=True, divisor_override=7),
        lambda x: F.max_pool2d(x, 20, 6, 10, ceil_mode=True),
        lambda x: F.max_pool2d(x, 5, 6, 2, 3, ceil_mode=True, return_indices=True)[1],
    ]
    check(run, functions, torch.randn(1, 2, 7, 9))


def test_averages_of_what_exists_alone(operators):
    """EfficientNet averages its last image by windows of 1280 x 1280."""
    pool = torch.nn.AvgPool2d(1280, ceil_mode=True)
    program = torch.export.export(pool, (torch.randn(1, 4, 7, 7),))
    assert operators(import_model(program).mod["main"]) == ["mean"]


def test_writes_that_add(run):
    def put(x, i):
        return torch.zeros(3, 4).index_put((i, i + 1), x[0, :4], accumulate=True)

    functions = [
        put,
        lambda x, i: F.fold(x, (4, 4), 2, stride=1),
        lambda x, i: torch.zeros(4, 9).scatter_add(0, i[:, None].expand(4, 9), x[:4] * 2),
        lambda x, i: torch.zeros(8, 3).index_add(1, i, x[:, :4], alpha=2),
    ]
    check(run, functions, torch.randn(8, 9), torch.tensor([0, 2, 0, 1]))


def test_an_empty_index_writes_nothing(run):
    functions = [
        lambda x, i, how=how, inc=inc: x.scatter_reduce(0, i, x[:0], how, include_self=inc) + 1
        for how in ("sum", "prod", "amax")
        for inc in (True, False)
    ]
    check(run, functions, torch.randn(5, 3), torch.zeros(0, 3, dtype=torch.int64))


def test_an_expanded_index_writes_slices(run):
    def along(axis, how, **options):
        def function(x, i):
            index = i[None, :, None].expand(2, 5, 3).movedim(1, axis)
            return x.movedim(1, axis).scatter_reduce(axis, index, 2 * index.float(), how, **options)

        return function

    def replaced(x, i):  # of one another's index only in part: not slices
        return x.scatter(1, i[None, :, None].expand(2, 5, 2), 2 * x[:, :5])

    modes = ("sum", "amax", "mean", "prod")
    functions = [along(axis, how) for axis in (0, 1, -1) for how in modes]
    functions += [along(1, "amax", include_self=False), replaced]
    functions += [lambda x, i: x.scatter(1, i[None, :, None].expand(2, 5, 3), 7.0)]
    check(run, functions, torch.randn(2, 6, 3), torch.tensor([0, 2, 0, 4, 1]))


def test_an_index_that_was_expanded_at_export_alone(run):
    module = Functions(lambda x, i, y: x.scatter_add(0, i.movedim(0, 1).movedim(0, 1), y))
    x, y, nodes = torch.randn(5, 3), torch.randn(3, 3), torch.tensor([[0], [2], [0]])
    mod = import_model(torch.export.export(module, (x, nodes.expand(3, 3), y))).mod
    index = torch.tensor([[0, 1, 4], [2, 2, 0], [0, 3, 1]])
    (expected,) = module(x, index, y)
    np.testing.assert_allclose(run(mod, x.numpy(), index.numpy(), y.numpy()), expected, 1e-6)


def test_layer_norm_statistics(run):
    def norm(number):
        weight = torch.linspace(1, 2, 5)
        return lambda x: torch.native_layer_norm(x, [5], weight, None, 1e-3)[number]

    check(run, [norm(0), norm(1), norm(2)], torch.randn(3, 5))
    check(run, [norm(0)], torch.randn(3, 5).half(), rtol=2e-3, atol=1e-3)  # as under autocast


def test_what_is_not_honoured_is_refused():
    x = torch.randn(3, 4)
    refused(torch.nn.functional.dropout, x, match=r"random numbers.*model\.eval\(\)")
    refused(
        lambda x: torch.linalg.svd(x)[0], x, match=r"_linalg_svd with singular vectors.*svdvals"
    )
    refused(torch.fft.rfft, torch.randn(4099), match=r"_fft_r2c of length 4099.*pad to a length")


def test_assertions_about_values_are_told():
    def positive(x):
        torch._assert_async((x > 0).all(), "all positive")
        return x + 1

    with recording() as decisions:
        import_model(torch.export.export(Functions(positive), (torch.rand(3),)))
    assert [d.sentence for d in decisions if d.code == "assertion"] == [
        "An assertion about a value (all positive) is not checked when the program runs."
    ]


def test_what_is_computed_for_an_assertion_alone_is_left_out(run):
    def checked(x):
        torch._check_tensor_all(x > 0)  # reads a truth value: operators that have no converter
        count = (x > 0.5).sum().item()
        torch._check(count <= x.shape[0])
        return torch.arange(count) * 2.0, x + 1

    program = torch.export.export(Functions(checked), (torch.tensor([0.25, 0.75, 1.0]),))
    with recording() as decisions:
        mod = import_model(program).mod
    told = [d.sentence for d in decisions if d.code == "assertion"]
    assert told
    assert all(s.startswith("An assertion about a value (Runtime assertion") for s in told)
    evens, plus = run(mod, np.array([0.625, 0.125, 0.875], "float32"))
    np.testing.assert_array_equal(evens, [0, 2])
    np.testing.assert_array_equal(plus, np.float32([1.625, 1.125, 1.875]))


def test_an_argument_that_is_not_read_is_refused(monkeypatch):
    converter = Converter(lambda call: call.tensor("self"))
    monkeypatch.setitem(CONVERTERS, "leaky_relu.default", converter)
    x = torch.randn(3)
    import_model(torch.export.export(Functions(F.leaky_relu), (x,)))
    refused(lambda x: F.leaky_relu(x, 0.3), x, match=r"leaky_relu with negative_slope=0\.3")


def test_a_result_of_another_type_is_refused(monkeypatch):
    converter = Converter(lambda call: call.tensor("self", "float16"))
    monkeypatch.setitem(CONVERTERS, "relu.default", converter)
    refused(torch.relu, torch.randn(3), match=r"relu is converted to float16\[3\] instead of")


@pytest.fixture
def negated_relu():
    """Define an operator ``acme::relu``, which is not torch's."""
    library = torch.library.Library("acme", "FRAGMENT")
    library.define("relu(Tensor self, float alpha=1.0) -> Tensor")
    library.impl("relu", lambda x, alpha=1.0: -torch.relu(x), "CompositeExplicitAutograd")
    library.impl("relu", lambda x, alpha=1.0: torch.empty_like(x), "Meta")
    yield torch.ops.acme.relu
    CONVERTERS.pop("acme::relu.default", None)
    library._destroy()


def test_operators_of_other_namespaces(run, negated_relu):
    x = torch.randn(5)
    refused(
        negated_relu,
        x,
        match=r"operators acme\.relu \(1x\) at \S+ line \d+; register a converter of acme\.relu "
        r"\(tvm_fusion\.frontend\.torch_ops\.register\), or compile "
        r"program\.run_decompositions\({torch\.ops\.acme\.relu\.default: f}\)",
    )
    program = torch.export.export(Functions(negated_relu), (x,))
    advised = program.run_decompositions(
        {torch.ops.acme.relu.default: lambda x, alpha=1.0: -torch.relu(x)}
    )
    assert np.array_equal(run(import_model(advised).mod, x.numpy()), -x.clamp(min=0).numpy())
    register("acme::relu")(lambda call: relax.op.negative(relax.op.nn.relu(call.tensor("self"))))
    check(run, [negated_relu, torch.relu], x)
    refused(lambda x: negated_relu(x, 0.5), x, match=r"acme\.relu with alpha=0\.5")
    with pytest.raises(UserError, match="a second converter of acme::relu"):
        register("acme::relu")(lambda call: call.tensor("self"))


def test_what_a_converter_refuses_and_torch_cannot_decompose(negated_relu):
    def of_floats(node):
        return None if node.meta["val"].is_floating_point() else Unsupported("of ints")

    register("acme::relu", refuses=of_floats)(lambda call: call.tensor("self"))
    refused(negated_relu, torch.arange(3), match=r"unsupported operators acme\.relu of ints \(1x\)")


def test_classes_behind_the_end_of_a_row_have_no_margin(run):
    targets = torch.tensor([[1, 2, 3, -1, 0], [0, -1, 1, 1, 1], [-1, 0, 0, 0, 0], [4, 3, 2, 1, 0]])
    losses = [
        lambda x, y, kind=kind: F.multilabel_margin_loss(x, y, reduction=kind)
        for kind in ("none", "mean", "sum")
    ]
    check(run, losses, torch.randn(4, 5), targets)
    check(run, losses[:1], torch.randn(5), targets[0])


def test_divisors_of_the_smallest_number(run):
    x, y = (
        torch.tensor([-128, -126, 7, 0]).to(torch.int8),
        torch.tensor([-1, 6, 0, 0]).to(torch.int8),
    )
    check(run, [torch.gcd], x, y)
