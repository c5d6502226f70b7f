"""Expressions with their known optimum: how they are written, and the list of all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tvm
from tvm import ir, relax

from tvm_fusion.rewrite.egraph.head import operands
from tvm_fusion.rewrite.egraph.regions import Region


@dataclass(frozen=True)
class Leaf:
    """What an expression reads."""

    shape: tuple[int, ...]  # its shape
    dtype: str = "float32"  # its dtype
    is_weight: bool = False  # whether it is a constant
    is_positive: bool = False  # whether its elements are above zero

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw elements near one, of both signs if they may be."""
        if self.dtype == "bool":
            return rng.random(self.shape) < 0.5
        if self.dtype.startswith("int"):
            return rng.integers(-9, 10, self.shape).astype(self.dtype)
        values = rng.uniform(0.5, 1.5, self.shape)
        if not self.is_positive:
            values *= rng.choice((-1.0, 1.0), self.shape)
        return values.astype(self.dtype)


def weight(*shape: int) -> Leaf:
    """Describe a constant."""
    return Leaf(shape, is_weight=True)


def positive(*shape: int) -> Leaf:
    """Describe a tensor without zeros and negative elements."""
    return Leaf(shape, is_positive=True)


def number(value: float, dtype: str = "float32") -> relax.Expr:
    """Write a number."""
    return relax.const(value, dtype)


@dataclass(frozen=True, eq=False)
class Expression:
    """An expression, and the cheapest one that is equal to it."""

    name: str  # unique
    # Takes the leaves; returns what is there before, and the optimum: a tensor each, or as many as
    # there are outputs.
    write: Callable[..., tuple]
    leaves: dict[str, Leaf]  # by the names of the parameters of ``write``

    @cached_property
    def arrays(self) -> list[np.ndarray]:
        """Values of the leaves: the same ones whenever they are asked for."""
        rng = np.random.default_rng(sum(map(ord, self.name)))
        return [leaf.draw(rng) for leaf in self.leaves.values()]

    @cached_property
    def before(self) -> tvm.IRModule:
        """The expression itself."""
        return self._module(0)

    @cached_property
    def optimum(self) -> tvm.IRModule:
        """The cheapest equal one."""
        return self._module(1)

    def _module(self, side: int) -> tvm.IRModule:
        given: list[relax.Expr] = []
        for (name, leaf), array in zip(self.leaves.items(), self.arrays, strict=True):
            ty = relax.TensorType(leaf.shape, leaf.dtype)
            given.append(relax.const(array) if leaf.is_weight else relax.Var(name, ty))
        written = self.write(*given)[side]
        outputs = written if isinstance(written, tuple) else (written,)
        return module([v for v in given if isinstance(v, relax.Var)], outputs)


def module(params: Sequence[relax.Var], outputs: Sequence[relax.Expr]) -> tvm.IRModule:
    """Write nested calls as a function of one dataflow block, each call once."""
    builder = relax.BlockBuilder()
    done: dict[int, relax.Expr] = {}
    wanted = {hash(output) for output in outputs}

    def emit(expr: relax.Expr) -> relax.Expr:
        if not isinstance(expr, relax.Call):
            return expr
        if hash(expr) not in done:
            emitted = {hash(o): emit(o) for o in operands_of(expr)}
            write = builder.emit_output if hash(expr) in wanted else builder.emit
            done[hash(expr)] = write(_replaced(expr, emitted))
        return done[hash(expr)]

    with builder.function("main", list(params)):
        with builder.dataflow():
            results = [emit(output) for output in outputs]
        builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    return builder.finalize()


def whole(mod: tvm.IRModule) -> Region:
    """Take all operators of a module as a region, its results in their order."""
    (block,), result = mod["main"].body.blocks, mod["main"].body.body
    inside = {hash(b.var) for b in block.bindings}
    leaves = {hash(o): o for b in block.bindings for o in operands(b.value)}
    return Region(
        tuple(block.bindings),
        tuple(result.fields) if isinstance(result, relax.Tuple) else (result,),
        tuple(leaf for key, leaf in leaves.items() if key not in inside),
    )


def operands_of(call: relax.Call) -> list[relax.Expr]:
    """List the operands of a call that has no type yet, those in tuples included."""
    flat = [f for a in call.args for f in (a.fields if isinstance(a, relax.Tuple) else [a])]
    return [a for a in flat if isinstance(a, relax.Call)]


def _replaced(call: relax.Call, emitted: dict[int, relax.Expr]) -> relax.Call:
    def place(arg: ir.Expr) -> ir.Expr:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([place(f) for f in arg.fields])
        return emitted.get(hash(arg), arg)

    return relax.Call(call.op, [place(a) for a in call.args], call.attrs, call.ty_args)


EXPRESSIONS: dict[str, Expression] = {}


def expression(**leaves: Leaf | tuple[int, ...]) -> Callable:
    """Add a function that writes an expression and its optimum; a tuple is a tensor's shape."""

    def add(write: Callable[..., tuple]) -> Callable[..., tuple]:
        name = write.__name__
        if name in EXPRESSIONS:
            raise ValueError(f"there are two expressions {name}")
        if not write.__doc__:
            raise ValueError(f"{name} does not say why its optimum is one")
        known = {k: v if isinstance(v, Leaf) else Leaf(v) for k, v in leaves.items()}
        EXPRESSIONS[name] = Expression(name, write, known)
        return write

    return add
