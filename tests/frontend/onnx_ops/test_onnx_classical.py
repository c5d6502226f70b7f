"""Forests, linear models, support vector machines and encoders against ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvm_fusion
from tvm_fusion.core.decisions import recording
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model

slow = pytest.mark.slow
ML = "ai.onnx.ml"
F = 4
ROWS = tvm_fusion.DimRange(1, 40)
LABEL_AND_SCORES = {"label": "int64", "y": "float32"}
SCORES = {"y": "float32"}
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def model(op, inputs, outputs, version=3, constants=(), **attributes):
    node = helper.make_node(op, list(inputs), list(outputs), domain=ML, **attributes)

    def info(name, dtype, shape):
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
        )

    shapes = {n: ["rows", *a.shape[1:]] if a.ndim > 1 else list(a.shape) for n, a in inputs.items()}
    graph = helper.make_graph(
        [node],
        "graph",
        [info(n, a.dtype, shapes[n]) for n, a in inputs.items() if n not in constants],
        [info(n, dtype, None) for n, dtype in outputs.items()],
        [numpy_helper.from_array(inputs[n], n) for n in constants],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.fixture
def agrees_for_any_rows(onnxruntime_run, tmp_path):
    """Compile one operator for any number of rows; compare labels exactly, scores by rounding."""

    def check(op, inputs, outputs, version=3, constants=(), bound=1e-5, **attributes):
        made = model(op, inputs, outputs, version, constants, **attributes)
        fed = {n: a for n, a in inputs.items() if n not in constants}
        rank = max(a.ndim for a in fed.values())
        artifact = tvm_fusion.compile(made, "cpu", dims={"rows": ROWS} if rank > 1 else {})
        exe = tvm_fusion.load(artifact.export(tmp_path / "model"))
        for rows in (None, 1) if rank > 1 else (None,):
            part = {n: np.ascontiguousarray(a[:rows]) for n, a in fed.items()}
            wanted = onnxruntime_run(made, **part)
            for one, other in zip(exe.run(part).values(), wanted, strict=True):
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                if one.dtype.kind == "f":
                    np.testing.assert_allclose(one, other, rtol=bound, atol=bound)
                else:
                    np.testing.assert_array_equal(one, other)
        return artifact

    return check


def forest(rng, kind, trees=5, depth=4, targets=1, of_tree=None, signed=True, modes=MODES[:1]):
    """Draw the attributes of a forest; ``of_tree`` says of which targets a tree speaks."""
    nodes = {
        n: []
        for n in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids",
                  "falsenodeids", "missing_value_tracks_true")
    }  # fmt: skip
    leaves = {n: [] for n in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree, left, count):
        at, own = len(nodes["treeids"]), count[0]
        count[0] += 1
        for values in nodes.values():
            values.append(0.0 if values is nodes["values"] else 0)
        nodes["treeids"][at], nodes["nodeids"][at] = tree, own
        if left == 0 or (left < depth and rng.random() < 0.2):
            nodes["modes"][at] = "LEAF"
            for target in of_tree(tree) if of_tree else range(targets):
                leaves["treeids"].append(tree)
                leaves["nodeids"].append(own)
                leaves["ids"].append(target)
                weight = rng.uniform(-1 if signed else 0, 1) / trees
                leaves["weights"].append(float(np.float32(weight)))
            return own
        nodes["modes"][at] = str(rng.choice(modes))
        nodes["featureids"][at] = int(rng.integers(F))
        nodes["values"][at] = float(np.float32(np.round(rng.normal(), 1)))
        nodes["missing_value_tracks_true"][at] = int(rng.integers(2))
        nodes["truenodeids"][at] = grow(tree, left - 1, count)
        nodes["falsenodeids"][at] = grow(tree, left - 1, count)
        return own

    for tree in range(trees):
        grow(tree, depth, [0])
    return {f"nodes_{n}": v for n, v in nodes.items()} | {
        f"{kind}_{n}": v for n, v in leaves.items()
    }


def features(rng, rows=33):
    """Draw features of which some equal thresholds."""
    return np.round(rng.standard_normal((rows, F)), 1).astype("float32")


@pytest.mark.parametrize(
    ("aggregate", "targets", "one_each"),
    [
        ("AVERAGE", 3, False),
        pytest.param("SUM", 1, False, marks=slow),
        pytest.param("MIN", 3, True, marks=slow),
        pytest.param("MAX", 1, False, marks=slow),
    ],
)
def test_regressor(agrees_for_any_rows, rng, aggregate, targets, one_each):
    of_tree = (lambda tree: [tree % targets]) if one_each else None
    attributes = forest(rng, "target", targets=targets, of_tree=of_tree)
    artifact = agrees_for_any_rows(
        "TreeEnsembleRegressor", {"x": features(rng)}, SCORES, **attributes, n_targets=targets,
        aggregate_function=aggregate, base_values=[0.5] * targets,
    )  # fmt: skip
    assert artifact.manifest["functions"]["main"]["kernels"] <= 4  # walk, sums, base values


@pytest.mark.parametrize("mode", ["all", pytest.param("BRANCH_NEQ", marks=slow)])
def test_modes_and_missing_values(agrees_for_any_rows, rng, mode):
    x = features(rng)
    x[rng.random(x.shape) < 0.3] = np.nan
    attributes = forest(rng, "target", modes=MODES if mode == "all" else [mode])
    agrees_for_any_rows("TreeEnsembleRegressor", {"x": x}, SCORES, **attributes, n_targets=1)


def test_trees_of_one_leaf(agrees_for_any_rows, rng):
    """What boosting writes where no split gains anything: no node compares."""
    attributes = forest(rng, "class", depth=0, targets=3, of_tree=lambda tree: [tree % 3])
    agrees_for_any_rows(
        "TreeEnsembleClassifier", {"x": features(rng)}, LABEL_AND_SCORES, **attributes,
        classlabels_int64s=[4, 7, 9], post_transform="SOFTMAX",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_features_of_other_types(agrees_for_any_rows, rng, dtype):
    x = (features(rng) * 3).astype(dtype)
    attributes = forest(rng, "class", targets=2, of_tree=lambda tree: [0])
    agrees_for_any_rows(
        "TreeEnsembleClassifier", {"x": x}, LABEL_AND_SCORES, **attributes,
        classlabels_int64s=[0, 1],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_classifier(agrees_for_any_rows, rng, transform):
    attributes = forest(rng, "class", targets=3, of_tree=lambda tree: [tree % 3])
    agrees_for_any_rows(
        "TreeEnsembleClassifier", {"x": features(rng)}, LABEL_AND_SCORES, **attributes,
        classlabels_int64s=[4, 7, 9], post_transform=transform,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("of_class", [[0], [1], [0, 1]])
@pytest.mark.parametrize(
    ("signed", "base", "transform"),
    [(False, None, "NONE"), (True, None, "LOGISTIC"), (True, [0.25], "NONE"),
     (False, [0.1, 0.2], "LOGISTIC")],
)  # fmt: skip
def test_two_classes(agrees_for_any_rows, rng, of_class, signed, base, transform):
    """One column of scores or two, labels by 0 or 0.5: whatever ONNX Runtime makes of it."""
    if base and len(base) == 1 and of_class == [1]:
        of_class = [0]  # ONNX Runtime leaves the second column unwritten
    attributes = forest(rng, "class", targets=2, of_tree=lambda tree: of_class, signed=signed)
    attributes |= {"base_values": base} if base else {}
    agrees_for_any_rows(
        "TreeEnsembleClassifier", {"x": features(rng)}, LABEL_AND_SCORES, **attributes,
        classlabels_int64s=[4, 7], post_transform=transform,
    )  # fmt: skip


@pytest.mark.slow
def test_classes_that_some_leaves_leave_out(agrees_for_any_rows, rng):
    attributes = forest(rng, "class", targets=3)
    keep = rng.random(len(attributes["class_ids"])) < 0.7
    attributes |= {
        n: [v for v, kept in zip(values, keep, strict=True) if kept]
        for n, values in attributes.items()
        if n.startswith("class_")
    }
    agrees_for_any_rows(
        "TreeEnsembleClassifier", {"x": features(rng)}, LABEL_AND_SCORES, **attributes,
        classlabels_int64s=[4, 7, 9],
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=slow)])
def test_ensemble_with_members(agrees_for_any_rows, dtype):
    """The second node asks for one of four values, the third for one of two."""
    tensor = numpy_helper.from_array
    x = np.array([[1.2, 3], [3.7, 0], [12, 1], [7, 2], [100, 2], [9, 9], [-5, 1]], dtype)
    agrees_for_any_rows(
        "TreeEnsemble", {"x": x}, {"y": dtype}, version=5, n_targets=2, aggregate_function=1,
        membership_values=tensor(np.array([1.2, 3.7, 8, 9, np.nan, 12, 7, np.nan], dtype)),
        tree_roots=[0], nodes_modes=tensor(np.array([0, 6, 6], "uint8")),
        nodes_featureids=[0, 0, 0], nodes_splits=tensor(np.array([11, 5, np.nan], dtype)),
        nodes_truenodeids=[1, 0, 1], nodes_trueleafs=[0, 1, 1], nodes_falsenodeids=[2, 2, 3],
        nodes_falseleafs=[0, 1, 1], leaf_targetids=[0, 1, 0, 1],
        leaf_weights=tensor(np.array([5.23, 12.12, -12.23, 7.21], dtype)),
    )  # fmt: skip


def some(rng, count):
    return [float(v) for v in rng.standard_normal(count).astype("float32")]


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "scores"), [([3, 5, 9], 3), ([3, 5], 2), ([3, 5], 1)])
def test_linear_classifier(agrees_for_any_rows, rng, classes, scores):
    agrees_for_any_rows(
        "LinearClassifier", {"x": features(rng)}, LABEL_AND_SCORES, classlabels_ints=classes,
        coefficients=some(rng, F * scores), intercepts=some(rng, scores),
        post_transform="LOGISTIC",
    )  # fmt: skip


@pytest.mark.slow
def test_linear_regressor(agrees_for_any_rows, rng):
    agrees_for_any_rows(
        "LinearRegressor", {"x": features(rng)}, SCORES, targets=2,
        coefficients=some(rng, F * 2), intercepts=some(rng, 2),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "has_probability", "transform"),
    [
        (4, True, "NONE"),
        pytest.param(2, False, "NONE", marks=slow),
        pytest.param(2, True, "NONE", marks=slow),
        pytest.param(3, False, "LOGISTIC", marks=slow),
    ],
)
def test_svm_classifier(agrees_for_any_rows, rng, classes, has_probability, transform):
    counts, pairs = [3, 2, 4, 1][:classes], classes * (classes - 1) // 2
    vectors = sum(counts)
    attributes = {name: some(rng, pairs) for name in ("prob_a", "prob_b")}
    agrees_for_any_rows(
        "SVMClassifier", {"x": features(rng)}, LABEL_AND_SCORES, kernel_type="RBF",
        kernel_params=[0.4, 0.0, 3.0], vectors_per_class=counts,
        support_vectors=some(rng, vectors * F), coefficients=some(rng, vectors * (classes - 1)),
        rho=some(rng, pairs), classlabels_ints=[7, 2, 5, 1][:classes], post_transform=transform,
        bound=1e-4, **(attributes if has_probability else {}),
    )  # fmt: skip


@pytest.mark.slow
def test_linear_svm_classifier(agrees_for_any_rows, rng):
    agrees_for_any_rows(
        "SVMClassifier", {"x": features(rng)}, LABEL_AND_SCORES, kernel_type="LINEAR",
        kernel_params=[0.4, 0.0, 3.0], coefficients=some(rng, 2 * F), rho=[0.2],
        classlabels_ints=[7, 2],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "one_class"), [("POLY", 0), ("SIGMOID", 1)])
def test_svm_regressor(agrees_for_any_rows, rng, kernel, one_class):
    agrees_for_any_rows(
        "SVMRegressor", {"x": features(rng)}, SCORES, kernel_type=kernel, n_supports=5,
        kernel_params=[0.4, 0.1, 3.0], support_vectors=some(rng, 5 * F),
        coefficients=some(rng, 5), rho=[0.3], one_class=one_class, bound=1e-4,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_scaler(agrees_for_any_rows, rng, dtype):
    x = (features(rng) * 5).astype(dtype)
    agrees_for_any_rows("Scaler", {"x": x}, SCORES, offset=some(rng, F), scale=some(rng, F))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(agrees_for_any_rows, rng, norm):
    x = np.concatenate([features(rng, 5), np.zeros((1, F), "float32")])
    agrees_for_any_rows("Normalizer", {"x": x}, SCORES, norm=norm)


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [float("nan"), 0.0])
def test_imputer(agrees_for_any_rows, rng, replaced):
    x = features(rng)
    x[::3, 1] = replaced
    agrees_for_any_rows(
        "Imputer", {"x": x}, SCORES, imputed_value_floats=some(rng, F),
        replaced_value_float=replaced,
    )  # fmt: skip


@pytest.mark.slow
def test_binarizer(agrees_for_any_rows, rng):
    agrees_for_any_rows("Binarizer", {"x": features(rng)}, SCORES, threshold=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2])
def test_array_feature_extractor(agrees_for_any_rows, rng, rank):
    x = features(rng)
    inputs = {"x": x if rank == 2 else x[0], "places": np.array([2, 0, 3])}
    agrees_for_any_rows("ArrayFeatureExtractor", inputs, SCORES, constants=["places"])


@pytest.mark.slow
def test_feature_vectorizer(agrees_for_any_rows, rng):
    inputs = {"a": features(rng), "b": features(rng), "c": features(rng)}
    agrees_for_any_rows("FeatureVectorizer", inputs, SCORES, inputdimensions=[4, 2, 6])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_one_hot_encoder(agrees_for_any_rows, rng, dtype):
    x = rng.integers(-3, 4, (9, 2)).astype(dtype)
    agrees_for_any_rows("OneHotEncoder", {"x": x}, SCORES, cats_int64s=[-3, 0, 2])


@pytest.mark.parametrize(
    ("keys", "values"),
    [({"keys_int64s": [3, -2, 0]}, {"values_floats": [1.0, 2.0, 3.0], "default_float": 9.0}),
     ({"keys_floats": [3.0, float("nan"), 0.0]}, {"values_int64s": [1, 2, 3]})],
)  # fmt: skip
def test_label_encoder(agrees_for_any_rows, rng, keys, values):
    x = rng.integers(-3, 4, (9, 2))
    if "keys_floats" in keys:
        x = np.where(x == 1, np.nan, x).astype("float32")
    outputs = {"y": "int64" if "values_int64s" in values else "float32"}
    agrees_for_any_rows("LabelEncoder", {"x": x}, outputs, version=4, **keys, **values)


def test_zip_map_is_dropped_with_a_note(rng):
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [5, 2])
    of_rows = helper.make_map_type_proto(
        onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    )
    y = helper.make_value_info("y", helper.make_sequence_type_proto(of_rows))
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"]),
        helper.make_node("ZipMap", ["p"], ["y"], domain=ML, classlabels_int64s=[4, 7]),
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 1)]
    made = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets)
    with recording() as decisions:
        imported = import_model(made)
    (output,) = imported.signatures["main"].outputs
    assert (output.name, output.shape) == ("y", (5, 2))
    (note,) = [d.sentence for d in decisions if d.code == "zip_map_dropped"]
    assert "y is a tensor whose columns are the classes 4, 7" in note


@pytest.mark.parametrize(
    ("op", "attributes", "found"),
    [
        ("TreeEnsembleClassifier", {"classlabels_strings": ["a", "b"]}, "classes that are strings"),
        ("LinearClassifier", {"classlabels_strings": ["a", "b"]}, "classes that are strings"),
        ("OneHotEncoder", {"cats_strings": ["a"]}, "strings (cats_strings)"),
        ("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}, "strings (keys_strings)"),
    ],
)
def test_strings_are_refused_by_name(op, attributes, found):
    made = model(op, {"x": np.zeros((2, F), "float32")}, SCORES, 2, **attributes)
    with pytest.raises(UserError) as error:
        import_model(made, tvm_fusion.FusionConfig(dims={"rows": 2}))
    assert op in str(error.value)
    assert found in str(error.value)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"nodes_truenodeids": [5, 0, 0]}, "a child that is not a node"),
        ({"nodes_featureids": [7, 0, 0]}, "compares feature 7 of 4"),
        ({"nodes_modes": ["BRANCH_ODD", "LEAF", "LEAF"]}, "the mode BRANCH_ODD"),
        ({"nodes_truenodeids": [0, 0, 0]}, "a node below itself"),
        ({"target_nodeids": [1, 1]}, "two weights of one leaf"),
        ({"post_transform": "CUBE"}, "post_transform CUBE"),
    ],
)
def test_damaged_forests(change, found):
    attributes = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
        "target_weights": [1.0, 2.0], "n_targets": 1,
    } | change  # fmt: skip
    made = model("TreeEnsembleRegressor", {"x": np.zeros((2, F), "float32")}, SCORES, **attributes)
    with pytest.raises(UserError) as error:
        import_model(made, tvm_fusion.FusionConfig(dims={"rows": 2}))
    assert found in str(error.value)


def test_a_model_without_a_version_of_the_standard_domain(rng):
    """No node is of it, so ONNX asks for none."""
    made = model("Binarizer", {"x": features(rng)}, SCORES, threshold=0.2)
    del made.opset_import[0]
    imported = import_model(made, tvm_fusion.FusionConfig(dims={"rows": ROWS}))
    assert imported.signatures["main"].outputs[0].dtype == "float32"
