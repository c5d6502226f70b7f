"""TfIdfVectorizer against onnx's reference."""

import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tvm_fusion import UserError
from tvm_fusion.frontend import import_model

POOL = {
    "ngram_counts": [0, 3, 9],  # numbers of one, two and three tokens
    "pool_int64s": [2, 3, 5, 2, 3, 3, 5, 5, 5, 1, 2, 3, 3, 3, 2],
    "ngram_indexes": [0, 5, 2, 1, 3, 4, 7, 6],
}


@pytest.mark.slow_beyond(6)
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("low", "high", "skips"), [(1, 1, 0), (1, 2, 2), (2, 3, 1)])
def test_counts_of_n_grams(agrees, rng, mode, low, high, skips):
    attrs = {**POOL, "mode": mode, "min_gram_length": low, "max_gram_length": high}
    attrs |= {"max_skip_count": skips, "weights": [0.5] * 8}
    x = rng.integers(1, 6, (3, 17))
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **attrs)
    graph = helper.make_graph(
        [node],
        "counts",
        [helper.make_tensor_value_info("x", 7, [3, 17])],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    wanted = ReferenceEvaluator(model).run(None, {"x": x})
    assert wanted[0].any()
    agrees("TfIdfVectorizer", {"x": x}, {"y": "float32"}, expected=wanted, **attrs)


def test_weights_that_may_be_meant_in_two_orders(onnx_model):
    attrs = {**POOL, "mode": "IDF", "min_gram_length": 1, "max_gram_length": 1}
    attrs |= {"max_skip_count": 0, "weights": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]}
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **attrs)
    model = onnx_model([node], {"x": ("int64", [9])}, {"y": ("float32", None)})
    with pytest.raises(UserError, match=r"in another order than the outputs .*; sort the n-gr"):
        import_model(model)
