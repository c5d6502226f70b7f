"""One function rewritten for one worker, operator by operator, as a plan says."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import GenericConst

from ..core.constants.numpy_types import array_of
from ..core.shards import Shard
from ..errors import UserError
from ..words import counted
from .computed_weights import ComputedWeights
from .plan import Collective, Partial, Plan, Product, Region, Split, State, nbytes
from .views import extent, fixed, group_of

_HALF = ("float16", "bfloat16")


class Rewriter:
    """Rewrites a function.

    Parameters
    ----------
    plan
        Read, and added to.
    builder
        Of the new module.
    bounds
        The largest extents of symbolic dimensions, at which tensors are priced.
    slices
        Parts of constants made so far for this worker.
    written
        Inputs that the function writes to, and may be split, by their names.
    """

    def __init__(
        self,
        plan: Plan,
        builder: relax.BlockBuilder,
        rank: int,
        bounds: Mapping[str, int],
        slices: dict[Any, Any],
        written: Mapping[relax.Var, str],
    ) -> None:
        self.plan, self.builder, self.rank = plan, builder, rank
        self._bounds, self._slices, self._written = bounds, slices, written
        self._env: dict[relax.Var, tuple[Any, Any]] = {}
        self._wholes: dict[relax.Var, Any] = {}
        self._columns: dict[Any, int] = {}  # of weights that were split by columns
        self._transposed: dict[relax.Var, GenericConst] = {}
        self.computed = ComputedWeights(plan.size, self.part_of, self.emit)
        self.found: list[tuple[Any, Product | Collective, str]] = []

    # Operands: expressions of the original function.

    def bind(self, var: relax.Var, local: Any, state: Any) -> None:
        """Set what a variable is on this worker; of a tuple, a list of both for each field."""
        self._env[var] = (local, state)

    def bind_transposed(self, var: relax.Var, matrix: GenericConst) -> None:
        """Note that a variable is a constant transposed: logits by a table that tokens read too."""
        self._transposed[var] = matrix

    def weight_of(self, arg: Any) -> tuple[GenericConst, bool] | None:
        """Return the constant that an operand is, and whether transposed; of others ``None``.

        Of several that it is computed of, the largest.
        """
        if isinstance(arg, GenericConst):
            return arg, False
        if constants := self.computed.constants(arg):
            return constants[0], False
        return (self._transposed[arg], True) if arg in self._transposed else None

    def state(self, arg: Any) -> State:
        """Return how an operand is spread."""
        state: State = self._env[arg][1] if arg in self._env else None
        return state

    def fields(self, arg: Any) -> tuple[list[Any], list[Any]] | None:
        """Return the locals and states of a tuple's fields, if it is known by fields."""
        local, state = self._env.get(arg, (None, None))
        return (local, state) if isinstance(state, list) else None

    def local(self, arg: Any) -> Any:
        """Return an operand as this worker has it: whole, a part or a summand."""
        return self._env[arg][0] if arg in self._env else arg

    def known(self, arg: relax.Var) -> tuple[Any, Any]:
        """Return what a variable is on this worker, and how it is spread."""
        return self._env.get(arg, (arg, None))

    def substituted(self, value: Any) -> Any:
        """Return an expression, such as a condition with its branches, over whole operands."""
        own = {var: self.whole(var) for var in relax.analysis.free_vars(value) if var in self._env}
        return tvm_ffi.structural_map(value, [(relax.Var, lambda v: own.get(v, v))], order="post")

    def whole(self, arg: Any) -> Any:
        """Return a whole operand, for which the workers exchange their parts."""
        if not isinstance(arg, relax.Var) or arg not in self._env:
            return arg
        if self.fields(arg) is not None:
            return self._whole_tuple(arg)
        local, state = self._env[arg]
        if state is None:
            return local
        if arg not in self._wholes:
            make = self._gathered if isinstance(state, Split) else self._reduced
            self._wholes[arg] = make(arg, local, state)
        return self._wholes[arg]

    def _whole_tuple(self, arg: relax.Var) -> Any:
        locals_, states = self._env[arg]
        if any(states):
            raise NotImplementedError(f"{arg.name} is a tuple of parts")
        return relax.Tuple(locals_)

    def _reduced(self, arg: relax.Var, local: Any, state: Partial) -> Any:
        dtype = str(arg.ty.dtype)
        # Products of half operands are float32, and rounded where they are stored anyway.
        travels = state.dtype if state.dtype in _HALF and dtype == "float32" else dtype
        self._count(state.key, "allreduce", arg, travels)
        if travels != dtype:
            local = self.emit(relax.op.astype(local, travels))
        total = self.emit(relax.op.ccl.allreduce(local, "sum", True))
        return total if travels == dtype else self.emit(relax.op.astype(total, dtype))

    def _gathered(self, arg: relax.Var, local: Any, state: Split) -> Any:
        """Gather parts along the first axis, and move them to theirs."""
        self._count(state.key, "allgather", arg, str(arg.ty.dtype))
        op, size, shard = relax.op, self.plan.size, state.shard
        shape = list(local.ty.shape.values)
        rows = self.emit(op.ccl.allgather(local, size, True))
        if shard.axis or len(shard.segments) > 1:
            rows = self.emit(op.reshape(rows, [size, *shape]))
            axes = list(range(1, len(shape) + 1))
            axes.insert(shard.axis, 0)
            rows = self.emit(op.permute_dims(rows, axes))
            shape[shard.axis] = shape[shard.axis] * size
            rows = self.emit(op.reshape(rows, shape))
        if len(shard.segments) > 1:
            order = np.argsort(np.concatenate([shard.indices(r, size) for r in range(size)]))
            rows = self.emit(op.take(rows, relax.const(order), axis=shard.axis, mode="clip"))
        return rows

    def split(self, arg: Any, shard: Shard, key: Any) -> Any:
        """Return this worker's part of an operand that is whole, or split as it should be.

        Parameters
        ----------
        key : hashable
            Of the region that wants it.
        """
        if isinstance(arg, GenericConst):
            return self.part_of(arg, shard)
        state = self.state(arg)
        if isinstance(state, Split) and state.shard == shard:
            self.plan.join(state.key, key)
            return self.local(arg)
        name = self._written.get(arg)
        if name is not None and state is None and name not in self.plan.inputs:
            self.plan.split_input(name, shard)
        whole = self.whole(arg)
        places = self.constant(shard.indices(self.rank, self.plan.size).astype("int64"), shard)
        return self.emit(relax.op.take(whole, places, axis=shard.axis, mode="clip"))

    def part_of(self, const: GenericConst, shard: Shard) -> GenericConst:
        """Return this worker's part of a constant."""
        known = (hash(const), shard)
        if known not in self._slices:
            parts, place = self.plan.parts, (self.rank, *known)
            if place not in parts:
                part = shard.part(array_of(const.value), self.rank, self.plan.size)
                parts[place] = relax.const(tvm.runtime.tensor(part), const.ty.dtype)
            self._slices[known] = (parts[place], const)
        return self._slices[known][0]

    def part_of_weight(self, arg: Any, shard: Shard) -> Any:
        """Return this worker's part of a weight: a constant, transposed, or computed of some."""
        const, is_transposed = self.weight_of(arg) or (arg, False)
        if not is_transposed:
            return self.computed.part(arg, shard)
        part = self.part_of(const, Shard(1 - shard.axis, shard.segments))
        return self.emit(relax.op.permute_dims(part))

    def constant(self, array: np.ndarray, known: Any) -> GenericConst:
        """Make a constant that each worker has elements of its own of.

        Parameters
        ----------
        known : hashable
            What it is made for; the same one is made once.
        """
        if known not in self._slices:
            self._slices[known] = (relax.const(tvm.runtime.tensor(array)), None)
        return self._slices[known][0]

    # Results.

    def emit(self, value: Any, name: str = "") -> relax.Var:
        """Bind a value of the new function."""
        return self.builder.emit(value, name)

    def product(self, key: Any, weight: Any, out: Any, inner: Any, role: str) -> None:
        """Note a product of which each worker computes a part."""
        name = self.plan.name(key)
        shape = self.shape(weight)
        if role.startswith("columns"):
            self._columns[key] = shape[-1]
        flops = 2.0 * float(np.prod(self.shape(out), dtype=float)) * float(self.fixed(inner))
        stored = self.computed.constants(weight) or [weight]
        size = sum(nbytes(self.shape(one), str(one.ty.dtype)) for one in stored)
        item = Product(name, size, flops)
        self.found.append((key, item, role))

    def cut_columns(self, state: Split, places: set[int]) -> None:
        """Let the weight that caused a split have segments that end at places of its result.

        Begins again where that changes anything.
        """
        key, extent_ = state.key, state.shard.extent
        columns = self._columns.get(key)
        if columns is None or len(state.shard.segments) > 1 or columns % extent_:
            return
        scale = columns // extent_
        self.plan.cut(key, {place * scale for place in places} - {0, columns})

    def cut_by_reshape(self, state: Split, before: Sequence[Any], after: Sequence[Any]) -> None:
        """Cut columns that a reshape parts in several equal ones, such as queries, keys, values.

        Raises
        ------
        UserError
            Where it parts them in heads whose number the workers do not divide.
        """
        columns = self._columns.get(state.key)
        (begin, end), (first, last) = group_of(before, after, state.shard.axis)
        new = fixed(after[first:last])
        if columns is None or end - begin > 1 or new is None or len(new) < 2:
            return
        whole = state.shard.extent
        if new[0] < self.plan.size and len(state.shard.segments) == 1 and len(new) > 2:
            self.cut_columns(state, {i * whole // new[0] for i in range(1, new[0])})
        heads = new[0] if len(new) == 2 else new[1]
        raise UserError(
            f"{counted(self.plan.size, 'worker')} for {self.plan.name(state.key)}, whose columns "
            f"are {counted(heads, 'head')} or groups of them",
            f"a number of workers that divides {heads}",
            "choose another one, or keep the weight whole by shards={NAME: 'whole'}",
        )

    def _count(self, key: Any, kind: str, arg: Any, dtype: str) -> None:
        size = nbytes(self.shape(arg), dtype)
        self.found.append((key, Collective(kind, size), ""))

    def shape(self, arg: Any) -> list[int]:
        """Return an operand's whole shape, symbolic extents at their largest."""
        return [self.fixed(value) for value in arg.ty.shape.values]

    def fixed(self, value: Any) -> int:
        """Return an extent at its largest."""
        known = extent(value)
        if known is not None:
            return known
        bounds = self._bounds

        def at_most(var: tirx.Var) -> Any:
            return tirx.IntImm("int64", bounds.get(var.name, 1))

        most = tvm_ffi.structural_map(value, [(tirx.Var, at_most)], order="post")
        at = tvm.sym.Analyzer().simplify(most)
        return int(at) if isinstance(at, tirx.IntImm) else 1


Rule = Callable[[Rewriter, relax.Call], tuple[Any, Any]]


def regions_of(plan: Plan, rewriters: Sequence[Rewriter]) -> dict[Any, Region]:
    """Collect what was found, by region."""
    found: dict[Any, Region] = {}
    for rewriter in rewriters:
        for key, item, role in rewriter.found:
            region = found.setdefault(plan.root(key), Region())
            if isinstance(item, Product):
                region.products.append(item)
                region.roles.setdefault(item.name, role)
            else:
                region.collectives.append(item)
    return found


def is_tensor(arg: Any) -> bool:
    """Whether an operand is a tensor."""
    return isinstance(arg, ir.Expr) and isinstance(getattr(arg, "ty", None), relax.TensorType)
