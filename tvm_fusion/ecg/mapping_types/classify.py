"""Mapping types of a PrimFunc, per input and output, read from its index relation alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import tvm_ffi
from tvm import ir, s_tir, tirx

from .decide import Pair, decide
from .inverse import invert_write, is_int
from .loads import Unreadable, has_load, loads_of
from .place import Place, Read
from .scope import Iterator, Scope
from .table import MappingType, most_complex

_REMEMBERED = 4096  # different PrimFuncs; a large model has hundreds


@dataclass(frozen=True)
class Classification:
    """What a PrimFunc's outputs depend on."""

    # By index of the input and index of the output, both among the PrimFunc's parameters. Pairs
    # that do not depend on each other are absent.
    pairs: Mapping[tuple[int, int], Pair] = field(default_factory=dict)
    # Why the function is Opaque: a sentence. Empty if it is not.
    reason: str = ""

    @property
    def type(self) -> MappingType:
        """The most complex pair's; One-to-One for a function without tensor input."""
        if self.reason:
            return MappingType.OPAQUE
        return most_complex(pair.type for pair in self.pairs.values())

    def operand(self, index: int) -> MappingType | None:
        """Return the most complex type over the outputs of one input; None if none depends on it.

        Parameters
        ----------
        index
            Position of the input among the PrimFunc's parameters.
        """
        if self.reason:
            return MappingType.OPAQUE
        types = [pair.type for (source, _), pair in self.pairs.items() if source == index]
        return most_complex(types) if types else None


def classify(func: tirx.PrimFunc) -> Classification:
    """Find the mapping type of every (input, output) pair of a PrimFunc.

    Names and attributes play no part; equal functions are analysed once.

    Parameters
    ----------
    func
        A PrimFunc of any number of blocks, with static or symbolic shapes.

    Returns
    -------
    Classification
        Opaque with a reason if the analysis does not understand the function; never raises.
    """
    return _of_object(func)


@lru_cache(maxsize=_REMEMBERED)
def _of_object(func: tirx.PrimFunc) -> Classification:
    """Look up a function that is there many times without hashing its structure."""
    bare = tirx.PrimFunc(func.params, func.body, func.ret_type)
    return _classify(tvm_ffi.StructuralKey(bare))


@lru_cache(maxsize=_REMEMBERED)
def _classify(key: tvm_ffi.StructuralKey) -> Classification:
    try:
        return Classification(_pairs(key.key))
    except Unreadable as error:
        return Classification(reason=f"The function {error}.")
    except Exception as error:  # TVM's analyses raise internal errors on rare index expressions
        lines = str(error).strip().splitlines() or [""]
        return Classification(reason=f"The analysis failed: {type(error).__name__}: {lines[-1]}.")


def _pairs(func: tirx.PrimFunc) -> dict[tuple[int, int], Pair]:
    position = {param: k for k, param in enumerate(func.params)}
    return {
        (position[source], position[output]): decide(
            reads, accesses.dims, output.ty.shape, source.ty.shape
        )
        for output, accesses in read_accesses(func).items()
        for source, reads in accesses.reads.items()
    }


# Which input elements every output element of a PrimFunc is computed from.
_MOST_READS = 256  # of one buffer for one output: what is longer is not worth the compile time


@dataclass
class Accesses:
    """All reads for one written buffer, traced back to the function's inputs."""

    dims: tuple[ir.Var, ...]  # variables that stand for the index of the output element
    reads: dict[ir.Var, list[Read]] = field(default_factory=dict)  # reads by input buffer
    _seen: set[tuple[ir.Var, tvm_ffi.StructuralKey]] = field(default_factory=set, repr=False)

    def add(self, buffer: ir.Var, read: Read) -> None:
        """Note one more read of `buffer`."""
        key = tvm_ffi.StructuralKey([list(read.indices), list(read.conditions)])
        if (buffer, key) in self._seen:
            return
        self._seen.add((buffer, key))
        known = self.reads.setdefault(buffer, [])
        known.append(read)
        if len(known) > _MOST_READS:
            raise Unreadable(f"reads {buffer.name} at more than {_MOST_READS} different indices")


def read_accesses(func: tirx.PrimFunc) -> dict[ir.Var, Accesses]:
    """Trace every written parameter of `func` back to the parameters that it is computed from.

    Intermediate buffers are resolved: an element of theirs stands for what it was computed from.

    Parameters
    ----------
    func
        A PrimFunc of any number of blocks, with static or symbolic shapes.

    Returns
    -------
    dict
        By written buffer parameter; one that is updated in place occurs among its own reads.

    Raises
    ------
    Unreadable
        If the accesses cannot be traced; says why.
    """
    reader = _Reader([param for param in func.params if isinstance(param.ty, tirx.BufferType)])
    reader.visit(func.body, Scope())
    for param in reader.params:
        if param in reader.written and param in reader.read_as_input:
            raise Unreadable(f"overwrites its input {param.name} and reads other elements of it")
    return {param: reader.written[param] for param in reader.params if param in reader.written}


class _Reader:
    """Visits the statements in program order."""

    def __init__(self, params: Sequence[ir.Var]) -> None:
        self.params = list(params)
        self.written: dict[ir.Var, Accesses] = {}
        self.read_as_input: set[ir.Var] = set()
        self._traced: list[tuple[ir.Var, ir.Var, Read]] = []  # of the current block

    def visit(self, stmt: tirx.Stmt, scope: Scope) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for child in stmt.seq:
                self.visit(child, scope)
        elif isinstance(stmt, tirx.Bind):
            scope.bound[stmt.var] = scope.resolve(stmt.value)
        elif isinstance(stmt, tirx.BufferStore):
            self._store(stmt, scope)
        elif isinstance(stmt, tirx.For):
            self._loop(stmt, scope)
        elif isinstance(stmt, tirx.IfThenElse):
            condition = scope.resolve(stmt.condition)
            self.visit(stmt.then_case, scope.under(condition))
            if stmt.else_case is not None:
                self.visit(stmt.else_case, scope.under(tirx.Not(condition)))
        elif isinstance(stmt, s_tir.SBlockRealize):
            self._block(stmt, scope.of_block(stmt))
        elif isinstance(stmt, tirx.AttrStmt):
            threads = {}
            if stmt.attr_key == "thread_extent":
                threads[stmt.node.var] = Iterator(ir.Range(0, stmt.value))
            self.visit(stmt.body, scope.inner(threads))
        elif isinstance(stmt, tirx.Evaluate):
            list(loads_of(stmt.value))  # the value is unused; raises if there are side effects
        elif not isinstance(stmt, (tirx.AllocBuffer, tirx.AssertStmt)):
            raise Unreadable(f"contains a {type(stmt).__name__} statement")

    def _loop(self, loop: tirx.For, scope: Scope) -> None:
        if loop.step is not None and not is_int(loop.step, 1):
            raise Unreadable(f"contains the loop {loop.loop_var.name} with a step other than 1")
        range_ = ir.Range.from_min_extent(scope.resolve(loop.min), scope.resolve(loop.extent))
        self.visit(loop.body, scope.inner({loop.loop_var: Iterator(range_)}))

    def _block(self, realize: s_tir.SBlockRealize, scope: Scope) -> None:
        block, before = realize.block, set(self.written)
        if block.init is not None:
            self.visit(block.init, scope.spatial())
        reduced = set(self.written) - before
        self._traced = []
        self.visit(block.body, scope)
        # Buffers that one block reduces together (argmax) depend on each other's inputs.
        for target, buffer, read in self._traced * max(0, len(reduced) - 1):
            if buffer in reduced:
                self._trace(target, buffer, read)

    def _store(self, stmt: tirx.BufferStore, scope: Scope) -> None:
        target, shape = stmt.buffer, stmt.buffer.ty.shape
        value = scope.resolve(stmt.value)
        place = Place(scope, [scope.resolve(index) for index in stmt.indices], value)
        if any(has_load(index) for index in place.indices):
            raise Unreadable("writes at an index that depends on data (a scatter)")
        known = self.written.get(target)
        accesses = known or Accesses(
            tuple(ir.Var(f"d{k}", extent.ty) for k, extent in enumerate(shape))
        )
        solution, written = invert_write(place.indices, place.ranges, accesses.dims, shape)
        loads = list(loads_of(value, scope.conditions))
        for k, condition in enumerate(scope.conditions):
            loads += loads_of(condition, scope.conditions[:k])

        own = [load for load in loads if load.buffer.same_as(target)]
        if not all(place.is_at(load) for load in own):
            raise Unreadable(f"computes {target.name} from other elements of it (a recurrence)")
        if own and known is None:
            self._update_in_place(target, accesses)
        if not own:
            place.check_written_once(target, solution)
        self.written[target] = accesses
        for load in loads:
            if not load.buffer.same_as(target):
                read = place.read(load, solution, written)
                self._trace(target, load.buffer, read)
                self._traced.append((target, load.buffer, read))

    def _update_in_place(self, target: ir.Var, accesses: Accesses) -> None:
        if target not in self.params:
            raise Unreadable(f"reads {target.name} before writing it")
        accesses.add(target, Read(accesses.dims, (), {}, data_dependent=False))

    def _trace(self, target: ir.Var, buffer: ir.Var, read: Read) -> None:
        """Add `read` of `buffer` to `target`'s, or what that element of `buffer` was read from."""
        accesses, source = self.written[target], self.written.get(buffer)
        if source is None:
            if buffer not in self.params:
                raise Unreadable(f"reads {buffer.name} before writing it")
            self.read_as_input.add(buffer)
            accesses.add(buffer, read)
            return
        for origin, reads in source.reads.items():
            for earlier in list(reads):
                accesses.add(origin, earlier.at(source.dims, read))
