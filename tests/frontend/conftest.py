"""Small ONNX models, and a way to run a Relax module."""

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import relax


@pytest.fixture(autouse=True)
def _plain_llvm(plain_llvm):
    """What is tested here are graphs and their meaning."""


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def onnx_model():
    """Build a ModelProto from nodes, inputs and outputs as {name: (dtype, shape)}, weights."""

    def build(nodes, inputs, outputs, weights=None, opset=18, domains=()):
        def infos(specs):
            return [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
                )
                for name, (dtype, shape) in specs.items()
            ]

        graph = helper.make_graph(
            nodes,
            "graph",
            infos(inputs),
            infos(outputs),
            [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()],
        )
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    return build


@pytest.fixture(scope="session")
def run():
    """Compile a module as it is for this machine's CPU and call one of its functions.

    Several calls in a row of one module compile it once.
    """
    last = []

    def compiled(mod):
        if not last or not last[0].same_as(mod):
            executable = tvm.compile(relax.get_pipeline("zero")(mod), tvm.target.Target("llvm"))
            last[:] = mod, relax.VirtualMachine(executable, tvm.cpu())
        return last[1]

    def call(mod, *arrays, name="main"):
        result = compiled(mod)[name](*[tvm.runtime.tensor(array) for array in arrays])
        return result.numpy() if hasattr(result, "numpy") else [item.numpy() for item in result]

    return call


@pytest.fixture(scope="session")
def onnxruntime_run():
    """Run a ModelProto in ONNX Runtime, the independent reference."""
    onnxruntime = pytest.importorskip("onnxruntime")

    def call(model: onnx.ModelProto, **feeds):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, feeds)

    return call


@pytest.fixture(scope="session")
def operators():
    """List the operators a Relax function calls, in order, without their ``relax.``."""

    def names(func):
        found = []

        def visit(expr):
            if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
                found.append(expr.op.name.removeprefix("relax."))

        relax.analysis.post_order_visit(func, visit)
        return found

    return names
