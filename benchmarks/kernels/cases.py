"""What is measured: products of matrices, of a vector and a matrix, and maps of rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from tvm_fusion.device import parse

op = relax.op
SEED = 2026
DRAWN = 20


@dataclass(frozen=True)
class Product:
    """``x @ w`` of ``rows`` by ``terms`` and ``terms`` by ``columns``; ``w`` may be constant."""

    rows: int
    columns: int
    terms: int
    constant: bool = True

    @property
    def name(self) -> str:
        """Its extents, and whether the right operand is known at compile time."""
        kind = "constant" if self.constant else "input"
        return f"{self.rows}x{self.columns}x{self.terms} {kind}"

    @property
    def operations(self) -> float:
        """Floating point operations."""
        return 2.0 * self.rows * self.columns * self.terms


def squares() -> list[Product]:
    """List square products, of a constant and of an input, then those of transformers."""
    sizes = (256, 512, 768, 1024, 2048)
    found = [Product(n, n, n, kind) for n in sizes for kind in (True, False)]
    layers = [(128, 768, 768), (128, 3072, 768), (128, 768, 3072), (197, 768, 768)]
    return found + [Product(*shape) for shape in layers]


def drawn() -> list[Product]:
    """Draw shapes of all kinds from a fixed seed."""
    rng = np.random.default_rng(SEED)
    found = []
    for _ in range(DRAWN):
        m, n, k = (int(2 ** rng.uniform(4, 11)) for _ in range(3))
        found.append(Product(m, n, k, bool(rng.integers(2))))
    return found


def vectors() -> list[Product]:
    """List products of one row with matrices that no cache holds."""
    return [Product(1, n, k) for n, k in ((4096, 4096), (11008, 4096), (4096, 11008))]


ROWS: dict[str, tuple[Callable[..., relax.Expr], int]] = {
    "softmax": (lambda x: op.nn.softmax(x, -1), 2),
    "layer_norm": (lambda x, g, b: op.nn.layer_norm(x, g, b, [-1]), 2),
    "rms_norm": (lambda x, g: op.nn.rms_norm(x, g, [-1]), 2),
    "gelu": (lambda x: op.nn.gelu(x), 2),
    "add": (lambda x, y: op.add(x, y), 3),
    "sum": (lambda x: op.sum(x, [-1]), 1),
}
NORMED = (1, 8, 32, 128, 512)  # rows of norms before products
WIDTH, LAYERS = 768, 8
LARGE = (16384, 2048)  # rows and columns: 128 MB


def norms(emit: Callable[[relax.Expr], relax.Var], x: relax.Var) -> relax.Var:
    """Write layers of a norm and a product, as many kernels one after the other."""
    rng = np.random.default_rng(0)
    scale = relax.const(np.ones(WIDTH, "float32"))
    for _ in range(LAYERS):
        weight = relax.const(rng.standard_normal((WIDTH, WIDTH)).astype("float32"))
        x = emit(op.matmul(emit(op.nn.layer_norm(x, scale, scale, [-1])), weight))
    return x


def compiled(
    params: list[relax.Var], body: Callable[[Callable[[relax.Expr], relax.Var]], relax.Expr]
) -> Callable:
    """Compile ``body(emit)``, a function of one result; returns a callable over TVM's tensors."""
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit))
        builder.emit_func_output(result)
    built = tvm.compile(
        builder.get(),
        parse("cpu").tvm_target(),
        relax_pipeline="tvm_fusion",
        tir_pipeline="tvm_fusion",
    )
    return relax.VirtualMachine(built, tvm.cpu())["main"]
