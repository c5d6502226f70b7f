import numpy as np
import pytest
from onnx import TensorProto as T
from tiny_models import dense_data, dense_expected, dense_weights, onnx_model

import tvm_fusion
from tvm_fusion import DimRange
from tvm_fusion.errors import UserError


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_one_artifact_serves_every_batch_in_its_range(dense_folder, batch):
    data = dense_data(batch, seed=batch)
    expected = dense_expected(data, **dense_weights())
    actual = tvm_fusion.load(dense_folder)(data=data)["scores"]
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_batch_outside_of_the_range_is_refused_in_one_sentence(dense_folder):
    with pytest.raises(UserError) as caught:
        tvm_fusion.load(dense_folder)(data=dense_data(9))
    assert str(caught.value) == (
        "input 'data' has batch = 9; expected 1 to 8; compile with --dim batch=1..9."
    )


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """Two inputs of one length, a third of twice that, and an output of thrice."""
    model = onnx_model(
        [
            ("Add", ["a", "b"], ["sum"]),
            ("Concat", ["sum", "c"], ["joined"], {"axis": 1}),
            ("Relu", ["joined"], ["y"]),
        ],
        [("a", T.FLOAT, ["n", "m"]), ("b", T.FLOAT, ["n", "m"]), ("c", T.FLOAT, ["n", "2*m"])],
        [("y", T.FLOAT, ["n", "3*m"])],
    )
    artifact = tvm_fusion.compile(model, dims={"n": DimRange(1, 4), "m": DimRange(2, 9)})
    return tvm_fusion.load(artifact.export(tmp_path_factory.mktemp("tied") / "a"))


def arrays(**shapes):
    generator = np.random.default_rng(3)
    return {k: generator.standard_normal(s).astype("float32") for k, s in shapes.items()}


@pytest.mark.parametrize(("n", "m"), [(1, 2), (3, 5), (4, 9)])
def test_extents_that_depend_on_each_other(tied, n, m):
    given = arrays(a=(n, m), b=(n, m), c=(n, 2 * m))
    expected = np.concatenate([given["a"] + given["b"], given["c"]], axis=1).clip(0)
    np.testing.assert_allclose(tied(**given)["y"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"a": (3, 5), "b": (2, 5), "c": (3, 10)}, "'b' has shape .* n is 3 in an earlier input"),
        ({"a": (3, 5), "b": (3, 5), "c": (3, 5)}, r"'c' has shape \(3, 5\); expected \(n, .*m.*\)"),
        ({"a": (3, 1), "b": (3, 1), "c": (3, 2)}, "'a' has m = 1; expected 2 to 9"),
    ],
)
def test_extents_that_contradict_each_other_are_refused(tied, shapes, words):
    with pytest.raises(UserError, match=words):
        tied(**arrays(**shapes))
