"""Small graphs whose launches are counted, and then run for real on a stand-in for CUDA."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tvm
from tvm import relax, tirx
from tvm.relax import op
from tvm.s_tir import dlight
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_fusion.deploy.cuda_graph.static_inputs import STATIC_INPUTS


def cuda() -> tvm.target.Target:
    return tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")


@dataclass(frozen=True)
class Graph:
    """A module, the extents to run it at, and the functions to call."""

    build: Callable[[], tvm.IRModule]
    dims: dict[str, int] = field(default_factory=dict)
    functions: tuple[str, ...] = ("main",)
    cuda_graph: bool = False


GRAPHS: dict[str, Graph] = {}


def graph(**options: object) -> Callable[[Callable[[], tvm.IRModule]], Callable]:
    def register(build: Callable[[], tvm.IRModule]) -> Callable[[], tvm.IRModule]:
        GRAPHS[build.__name__] = Graph(build, **options)  # type: ignore[arg-type]
        return build

    return register


def tensor(name: str, *shape: object, dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def make(params: Sequence[relax.Var], body: Callable, name: str = "main") -> tvm.IRModule:
    """Build one function of one dataflow block; ``body`` gets an emitter and the parameters."""
    builder = relax.BlockBuilder()
    with builder.function(name, list(params)):
        with builder.dataflow():
            result = body(builder.emit, *params)
            results = list(result) if isinstance(result, (list, tuple)) else [result]
            outputs = [builder.emit_output(item) for item in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


@graph()
def elementwise_chain() -> tvm.IRModule:
    return make(
        [tensor("x", 33, 65), tensor("y", 65)],
        lambda e, x, y: op.nn.relu(e(op.add(e(op.exp(x)), y))),
    )


def softmax_body(e: Callable, x: relax.Expr) -> relax.Expr:
    powers = e(op.exp(e(op.subtract(x, e(op.max(x, -1, True))))))
    return op.divide(powers, e(op.sum(powers, -1, True)))


@graph()
def softmax_written_out() -> tvm.IRModule:
    return make([tensor("x", 31, 200)], softmax_body)


@graph(cuda_graph=True)
def softmax_in_cuda_graph() -> tvm.IRModule:
    return make([tensor("x", 31, 200)], softmax_body)


@graph()
def residual_layer_norm() -> tvm.IRModule:
    def body(e: Callable, x: relax.Var, r: relax.Var, g: relax.Var, b: relax.Var) -> list:
        total = e(op.add(x, r))
        return [total, op.nn.layer_norm(total, g, b, axes=[-1])]

    rows = (tensor("x", 30, 250), tensor("r", 30, 250))
    return make([*rows, tensor("g", 250), tensor("b", 250)], body)


def attention_body(e: Callable, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
    scores = e(op.matmul(q, e(op.permute_dims(k, [0, 1, 3, 2]))))
    scaled = e(op.multiply(scores, relax.const(0.125, "float32")))
    return op.matmul(e(op.nn.softmax(scaled, -1)), v)


@graph()
def attention_written_out() -> tvm.IRModule:
    return make([tensor(name, 2, 3, 31, 64) for name in "qkv"], attention_body)


@graph(cuda_graph=True)
def attention_in_cuda_graph() -> tvm.IRModule:
    return make([tensor(name, 2, 3, 31, 64) for name in "qkv"], attention_body)


@graph()
def attention_operator() -> tvm.IRModule:
    """One operator, one PrimFunc, several launches."""
    return make(
        [tensor(name, 2, 31, 3, 64) for name in "qkv"], lambda e, q, k, v: op.nn.attention(q, k, v)
    )


@graph()
def siblings() -> tvm.IRModule:
    return make([tensor("x", 33, 65)], lambda e, x: [op.exp(x), op.tanh(x)])


@graph()
def concat_and_split() -> tvm.IRModule:
    def body(e: Callable, x: relax.Var, y: relax.Var) -> list:
        joined = e(op.concat([e(op.exp(x)), e(op.tanh(y))], axis=1))
        halves = e(op.split(joined, 2, axis=0))
        first, second = e(relax.TupleGetItem(halves, 0)), e(relax.TupleGetItem(halves, 1))
        return [op.multiply(first, second), op.nn.relu(second)]

    return make([tensor("x", 30, 7), tensor("y", 30, 9)], body)


@graph()
def reshape_between_kernels() -> tvm.IRModule:
    """Views between kernels launch nothing."""

    def body(e: Callable, x: relax.Var, w: relax.Var) -> relax.Expr:
        product = e(op.matmul(e(op.reshape(x, (33, 64))), w))
        return op.nn.softmax(e(op.reshape(product, (3, 11, 64))), -1)

    return make([tensor("x", 3, 11, 64), tensor("w", 64, 64)], body)


@graph()
def reshape_as_output() -> tvm.IRModule:
    """Bound directly as the output, a reshape is a copying kernel."""
    return make(
        [tensor("x", 33, 64), tensor("w", 64, 64)],
        lambda e, x, w: op.reshape(e(op.nn.softmax(e(op.matmul(x, w)), -1)), (11, 3, 64)),
    )


@graph(functions=("first", "second"))
def two_functions() -> tvm.IRModule:
    first = make([tensor("x", 33, 65)], lambda e, x: op.nn.softmax(e(op.exp(x)), -1), "first")
    second = make([tensor("x", 65)], lambda e, x: op.exp(x), "second")
    return tvm.IRModule({**dict(first.functions), **dict(second.functions)})


@graph(dims={"n": 13, "s": 7})
def symbolic_batch() -> tvm.IRModule:
    n, s = tirx.Var("n", "int64"), tirx.Var("s", "int64")

    def body(e: Callable, x: relax.Var, w: relax.Var) -> list:
        product = e(op.matmul(e(op.reshape(x, (n * s, 64))), w))
        return [op.nn.softmax(product, -1), op.reshape(e(op.exp(product)), (n, s, 64))]

    return make([tensor("x", n, s, 64), tensor("w", 64, 64)], body)


@graph(dims={"n": 13}, cuda_graph=True)
def symbolic_cuda_graph() -> tvm.IRModule:
    mod = make([tensor("x", tirx.Var("n", "int64"), 200)], softmax_body)
    # Capture needs planned memory, and planning needs a bound.
    attrs = {
        "relax.rewrite_cuda_graph.capture_symbolic_vars": ["n"],
        "tir_var_upper_bound": {"n": 16},
    }
    return tvm.IRModule({"main": mod["main"].with_attrs(attrs)})


@graph(cuda_graph=True)
def blocks_with_a_cache() -> tvm.IRModule:
    """Products and norms that read their input twice, and a cache that stays in place."""

    def body(e: Callable, x: relax.Var, cache: relax.Var, w: relax.Var) -> list:
        y = x
        for _ in range(3):
            weighed = e(op.nn.softmax(e(op.matmul(y, e(op.permute_dims(cache, [1, 0])))), -1))
            y = e(op.add(x, e(op.matmul(e(op.matmul(weighed, cache)), w))))
        return [y, e(op.exp(y))]

    mod = make([tensor("x", 65, 512), tensor("cache", 700, 512), tensor("w", 512, 512)], body)
    return tvm.IRModule({"main": mod["main"].with_attr(STATIC_INPUTS, [1])})


@graph()
def topk() -> tvm.IRModule:
    return make([tensor("x", 5, 300)], lambda e, x: op.topk(x, 3, ret_type="values"))


@graph()
def cumsum() -> tvm.IRModule:
    """A scan of several levels: loops on the host around its launches."""
    return make([tensor("x", 3, 2000)], lambda e, x: op.cumsum(x, axis=-1))


@graph(dims={"n": 2000})
def symbolic_cumsum() -> tvm.IRModule:
    n = tirx.Var("n", "int64")
    return make([tensor("x", 3, n)], lambda e, x: op.cumsum(x, axis=-1))


@graph()
def sort() -> tvm.IRModule:
    return make([tensor("x", 4, 77)], lambda e, x: op.sort(x, axis=-1))


@graph()
def branches() -> tvm.IRModule:
    """The condition is read back from the device: a copy."""

    @I.ir_module
    class Module:
        @R.function
        def main(flag: R.Tensor((), "bool"), x: R.Tensor((33, 65), "float32")):
            if flag:  # noqa: SIM108
                y = R.exp(x)
            else:
                y = R.tanh(x)
            return y

    return Module


@graph()
def nested_functions() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def block(x: R.Tensor((33, 64), "float32"), w: R.Tensor((64, 64), "float32")):
            with R.dataflow():
                y = R.matmul(x, w)
                z = R.nn.softmax(y)
                R.output(z)
            return z

        @R.function
        def main(x: R.Tensor((33, 64), "float32"), w: R.Tensor((64, 64), "float32")):
            y = Module.block(x, w)
            z = Module.block(y, w)
            return z

    return Module


@graph()
def in_place() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @T.prim_func(private=True, s_tir=True)
        def refill(
            x: T.Buffer((T.int64(33), T.int64(65)), "float32"),
            y: T.Buffer((T.int64(33), T.int64(65)), "float32"),
        ):
            for i, j in T.grid(T.int64(33), T.int64(65)):
                with T.sblock("refill"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    x[vi, vj] = y[vi, vj] * T.float32(2)

        @R.function
        def main(x: R.Tensor((33, 65), "float32")):
            cls = Module
            with R.dataflow():
                y = R.exp(x)
                z = R.call_tir_inplace(
                    cls.refill, (y, x), inplace_indices=[0], out_ty=R.Tensor((33, 65), "float32")
                )
                R.output(z)
            return z

    return Module


def stock(entry: Graph, target: tvm.target.Target) -> tvm.IRModule:
    """Stock TVM, up to the form that the virtual machine's code generator takes."""
    config = {"relax.backend.use_cuda_graph": entry.cuda_graph}
    with tvm.transform.PassContext(config=config), target:
        mod = relax.transform.DecomposeOpsForInference()(entry.build())
        return relax.get_default_pipeline(target)(mod)


def unfused(entry: Graph, target: tvm.target.Target) -> tvm.IRModule:
    """One PrimFunc per operator, scheduled by DLight's fallback, calls still as ``call_tir``."""
    with target:
        return tvm.transform.Sequential(
            [
                relax.transform.DecomposeOpsForInference(),
                relax.backend.DispatchSortScan(),
                relax.transform.LegalizeOps(),
                dlight.ApplyDefaultSchedule(dlight.gpu.Fallback()),
            ]
        )(entry.build())


def ours(entry: Graph, target: tvm.target.Target) -> tvm.IRModule:
    """All stages of this package, up to the same form."""
    config = {"relax.backend.use_cuda_graph": entry.cuda_graph}
    with tvm.transform.PassContext(config=config), target:
        return relax.get_pipeline("tvm_fusion", target=target)(entry.build())


VARIANTS = {"stock": stock, "unfused": unfused}
