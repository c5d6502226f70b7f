"""Dumps after every stage: files that TVM reads back."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from onnx import TensorProto as T
from tiny_models import dense, onnx_model
from tvm import relax

from tvm_fusion import DimRange, FusionConfig
from tvm_fusion.deploy.build.dump import Dump
from tvm_fusion.deploy.memory.weights import lift_constants
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.pipeline import STAGES, stages


def convolutional():
    generator = np.random.default_rng(0)
    return onnx_model(
        [
            ("Conv", ["x", "w", "b"], ["c"], {"pads": [1, 1, 1, 1]}),
            ("Relu", ["c"], ["r"]),
            ("GlobalAveragePool", ["r"], ["p"]),
            ("Flatten", ["p"], ["f"]),
            ("Softmax", ["f"], ["s"]),
            ("Gather", ["s", "picked"], ["y"], {"axis": 1}),
        ],
        [("x", T.FLOAT, ["n", 3, 8, 8])],
        [("y", T.FLOAT, ["n", 2])],
        {
            "w": generator.standard_normal((8, 3, 3, 3)).astype("float32"),
            "b": generator.standard_normal(8).astype("float32"),
            "picked": np.array([5, 2]),
        },
    )


def reload(text):
    return tvm.script.from_source(text)


@pytest.fixture(scope="module", params=["dense", "convolutional"])
def dumped(request, tmp_path_factory):
    """The folder, and what the last stage produced."""
    model, dim = (dense(), "batch") if request.param == "dense" else (convolutional(), "n")
    folder = tmp_path_factory.mktemp("dump") / "new" / "folder"
    config = FusionConfig(dims={dim: DimRange(1, 4)}, dump=str(folder))
    mod = import_model(model, config).mod
    with parse("cpu").tvm_target():
        mod = tvm.ir.transform.Sequential(stages(config))(mod)
    return config.dump, mod


def test_there_is_one_file_a_stage(dumped):
    folder, _ = dumped
    expected = [f"{number}_{name}.py" for number, (name, _) in enumerate(STAGES, start=1)]
    assert sorted(path.name for path in folder.iterdir()) == expected


@pytest.mark.slow
def test_every_file_is_read_back_as_the_same_text(dumped):
    folder, _ = dumped
    for path in sorted(folder.iterdir()):
        mod = reload(path.read_text())
        assert mod.script(show_meta=True) + "\n" == path.read_text(), path.name


def test_the_last_file_is_what_the_last_stage_produced(dumped):
    folder, mod = dumped
    last = sorted(folder.iterdir())[-1]
    actual = reload(last.read_text())
    # Dimensions that only PrimFuncs' buffers name are declared per file in text, so the comparison
    # maps free variables.
    tvm.ir.assert_structural_equal(actual, lift_constants(mod).mod, map_free_vars=True)


def run(mod, arguments):
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arguments)).numpy()


@pytest.mark.slow
def test_a_dumped_module_computes_the_same(dumped):
    folder, mod = dumped
    reloaded = reload(sorted(folder.iterdir())[-1].read_text())
    _, *inner = mod["main"].params[0].ty.shape
    data = np.random.default_rng(1).standard_normal((3, *map(int, inner))).astype("float32")
    result = run(mod, [data])
    assert result.std() > 1e-3
    weights = [const.value.numpy() for const in lift_constants(mod).weights["main"]]
    np.testing.assert_array_equal(run(reloaded, [data, *weights]), result)


@pytest.mark.parametrize(
    "constant",
    [
        np.arange(6, dtype="float32").reshape(2, 3),
        np.array(2.5, "float32"),
        np.array(7, "int64"),
        np.array([True, False]),
        np.ones((2, 2), ml_dtypes.bfloat16),
        np.zeros(3, "float16"),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_constants_of_any_dtype_can_be_read_back(tmp_path, constant):
    builder = relax.BlockBuilder()
    with builder.function("main"):
        x = relax.Var("x", relax.TensorType([2, 3], "float32"))
        with builder.dataflow():
            other = relax.op.astype(relax.const(constant), "float32")
            total = relax.op.sum(builder.emit(other))
            y = builder.emit_output(relax.op.add(x, builder.emit(total)))
        builder.emit_func_output(y, [x])
    mod = builder.get()
    assert Dump(tmp_path / "new" / "m.py")(mod).same_as(mod)
    actual = reload((tmp_path / "new" / "m.py").read_text())
    tvm.ir.assert_structural_equal(actual, lift_constants(mod).mod)
