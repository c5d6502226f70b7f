import numpy as np
import pytest
from relax_modules import main_module
from tvm import relax, tirx

import tvm_fusion
from tvm_fusion.frontend.normalize import ExpandNonzero

pytestmark = pytest.mark.slow_beyond(2)

RNG = np.random.default_rng(11)


def module(shape, dtype, build):
    x = relax.Var("x", relax.TensorType(shape, dtype))
    return main_module([x], build(x))


def run(mod, tmp_path, x, **options):
    program = tvm_fusion.load(tvm_fusion.compile(mod, "cpu", **options).export(tmp_path / "a"))
    return list(program.run({"x": x}).values())


def calls(mod):
    found = []
    relax.analysis.post_order_visit(mod["main"], found.append)
    return {str(c.op.name) for c in found if isinstance(c, relax.Call) and hasattr(c.op, "name")}


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 5, 2), "float32"), ((31,), "bool"), ((4, 6), "int64")]
)
def test_nonzero(tmp_path, shape, dtype):
    mod = module(shape, dtype, relax.op.nonzero)
    x = (RNG.integers(-1, 2, shape) * (RNG.random(shape) > 0.3)).astype(dtype)
    (result,) = run(mod, tmp_path, x)
    np.testing.assert_array_equal(result, np.stack(np.nonzero(x)))
    assert "relax.nonzero" not in calls(ExpandNonzero()(mod))


def test_nonzero_that_finds_nothing_or_has_nothing_to_look_at(tmp_path):
    (result,) = run(
        module((3, 4), "float32", relax.op.nonzero), tmp_path, np.zeros((3, 4), "float32")
    )
    assert result.shape == (2, 0)
    empty = ExpandNonzero()(module((0, 4), "float32", relax.op.nonzero))
    assert calls(empty) == {"relax.zeros"}


@pytest.mark.slow
def test_nonzero_of_symbolic_shape(tmp_path):
    mod = module((tirx.Var("n", "int64"), 3), "float32", relax.op.nonzero)
    x = RNG.integers(0, 2, (5, 3)).astype("float32")
    (result,) = run(mod, tmp_path, x, dims={"n": tvm_fusion.DimRange(1, 9)})
    np.testing.assert_array_equal(result, np.stack(np.nonzero(x)))


@pytest.mark.slow
def test_unique_of_symbolic_shape(tmp_path):
    rows, columns = tirx.Var("m", "int64"), tirx.Var("n", "int64")
    mod = module((rows, columns), "int64", lambda x: relax.op.unique(x, True, True, True, True))
    x = RNG.integers(0, 6, (5, 3))
    dims = {"m": tvm_fusion.DimRange(1, 9), "n": tvm_fusion.DimRange(1, 9)}
    results = run(mod, tmp_path, x, dims=dims)
    wanted = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, want.reshape(-1))


@pytest.mark.slow
def test_unique(tmp_path):
    mod = module(
        (4, 5),
        "float32",
        lambda x: relax.op.unique(
            x, sorted=True, return_index=True, return_inverse=True, return_counts=True
        ),
    )
    x = RNG.integers(0, 6, (4, 5)).astype("float32")
    results = run(mod, tmp_path, x)
    expected = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    for result, want in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, want.reshape(result.shape))


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_unique_of_slices_and_without_order(tmp_path, is_sorted, axis):
    flags = {f"return_{name}": True for name in ("index", "inverse", "counts")}

    def made(x):
        place = {} if axis is None else {"axis": axis}
        return relax.op.unique(x, sorted=is_sorted, **place, **flags)

    x = RNG.integers(0, 2, (5, 2, 3)).astype("float32")
    mod = module(x.shape, "float32", made)
    assert "relax.unique" not in calls(ExpandNonzero()(mod))
    values, places, inverse, counts = np.unique(x, axis=axis, **flags)
    order = np.argsort(np.arange(len(places)) if is_sorted else places)
    values = values[order] if axis is None else np.take(values, order, axis)
    expected = values, places[order], np.argsort(order)[inverse.reshape(-1)], counts[order]
    for result, want in zip(run(mod, tmp_path, x), expected, strict=True):
        np.testing.assert_array_equal(result, want)


def test_what_only_python_functions_compute_is_refused():
    mod = module((4, 65), "float32", lambda x: relax.op.unique(x, axis=0))
    with pytest.raises(tvm_fusion.UserError, match="operator unique is a numpy function of TVM"):
        tvm_fusion.compile(mod, "cpu")


def test_a_call_whose_type_a_match_cast_gives_is_expanded(tmp_path):
    """As TVM's importer writes Compress."""

    def made(x):
        builder, number = relax.BlockBuilder(), tirx.Var("number", "int64")
        with builder.function("main", [x]):
            with builder.dataflow():
                ty = relax.TensorType([1, number], "int64")
                found = builder.match_cast(relax.op.nonzero(x), ty)
                result = builder.emit_output(relax.op.reshape(found, [number]))
            builder.emit_func_output(result)
        return builder.finalize()

    mod = made(relax.Var("x", relax.TensorType((9,), "bool")))
    assert "relax.nonzero" not in calls(ExpandNonzero()(mod))
    x = RNG.integers(0, 2, 9).astype("bool")
    (found,) = run(mod, tmp_path, x)
    np.testing.assert_array_equal(found, np.nonzero(x)[0])


def test_other_operators_stay():
    mod = module((4,), "float32", relax.op.exp)
    assert ExpandNonzero()(mod).same_as(mod)
