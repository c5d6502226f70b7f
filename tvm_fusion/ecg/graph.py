"""The extended computational graph: operators with their classes, work and edges.

DNNFusion (Niu et al., PLDI 2021, section 3) extends a computational graph by each operator's
mapping type, the size of its result and whether that result can go. Here a graph covers one
dataflow block; what is not a PrimFunc over SBlocks is a node as well, an opaque one, so that no
group can grow around it.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property

import tvm
from tvm import relax

from .operator import Edge, Operator, Value, flatten
from .read_dataflow import DataflowReader, fresh_value


class Graph:
    """Operators of one dataflow block in order, with their values.

    Attributes
    ----------
    operators : list of Operator
        In the order of the bindings, opaque nodes included; a binding that only renames (an alias,
        a tuple, an item of one) is no operator.
    values : dict of relax.Var to (Value or tuple)
        What each variable stands for; tuples are nested. Tensors of earlier blocks are among them,
        without a producer, as parameters are.
    """

    def __init__(self, mod: tvm.IRModule, func: relax.Function, block: relax.DataflowBlock) -> None:
        reader = DataflowReader(mod, func, block)
        self.block = block
        self.operators, self.values = reader.operators, reader.values
        self._extra = reader.extra
        self._before: dict[Operator, tuple[object, list[Operator]]] = {}

    def edges(self) -> Iterator[Edge]:
        """Tensors that go from one operator to another."""
        for consumer in self.operators:
            for value in dict.fromkeys(consumer.tensors):
                if value.producer is not None:
                    yield Edge(value.producer, value, consumer)

    def predecessors(self, operator: Operator) -> list[Operator]:
        """Operators that must come before, in order and without duplicates."""
        operands, found = self._before.get(operator, (None, []))
        if operands is not operator.operands:  # see duplicate
            direct = [v.producer for v in operator.tensors if v.producer is not None]
            found = list(dict.fromkeys([*direct, *self._extra.get(operator, [])]))
            self._before[operator] = operator.operands, found
        return found.copy()

    def successors(self, operator: Operator) -> list[Operator]:
        """Operators that read a result, in order and without duplicates."""
        return list(dict.fromkeys(c for v in operator.results for c in v.consumers))

    @cached_property
    def dependents(self) -> Mapping[Operator, list[Operator]]:
        """Operators that must come after each operator, for reachability."""
        after: dict[Operator, list[Operator]] = {op: [] for op in self.operators}
        for op in self.operators:
            for before in self.predecessors(op):
                after[before].append(op)
        return after

    def duplicate(
        self, operators: Sequence[Operator], readers: Container[Operator]
    ) -> list[Operator]:
        """Copy operators for some readers, which compute the results themselves from now on.

        Parameters
        ----------
        operators
            In topological order; what they give each other is copied, too.
        readers
            Operators outside that shall read the copies.

        Returns
        -------
        list of Operator
            The copies, which stand behind their originals.
        """
        new: dict[Value, Value] = {}
        copies = []
        for op in operators:
            old = op.binding.var
            var = relax.DataflowVar(old.name, old.ty, old.span)
            operands = tuple(new.get(o, o) if isinstance(o, Value) else o for o in op.operands)
            binding = relax.VarBinding(var, op.binding.value)
            copy = Operator(op.index, op.name, op.func, op.gvar, operands, (), binding)
            self.values[var] = whole = fresh_value(var, False, copy)
            copy.results = tuple(flatten(whole))
            for value, original in zip(copy.results, op.results, strict=True):
                value.is_parameter = original.is_parameter
                new[original] = value
            for value in dict.fromkeys(copy.tensors):
                value.consumers.append(copy)
            self._extra[copy] = self._extra.get(op, [])
            self.operators.insert(self.operators.index(op) + 1, copy)
            copies.append(copy)
        for original, value in new.items():
            for reader in [c for c in original.consumers if c in readers]:
                reader.operands = tuple(value if o is original else o for o in reader.operands)
                original.consumers.remove(reader)
                value.consumers.append(reader)
        self.__dict__.pop("dependents", None)
        return copies

    def remove(self, operator: Operator) -> None:
        """Drop an operator whose results nothing reads any more."""
        self.operators.remove(operator)
        for value in dict.fromkeys(operator.tensors):
            value.consumers.remove(operator)
        self.__dict__.pop("dependents", None)

    def cut(self, operators: Sequence[Operator], instead: Mapping[Value, Value]) -> None:
        """Drop operators; who read one of their results and stays reads another value instead."""
        gone = set(operators)
        self.operators = [op for op in self.operators if op not in gone]
        for value in dict.fromkeys(v for op in operators for v in op.tensors):
            value.consumers = [reader for reader in value.consumers if reader not in gone]
        for old, new in instead.items():
            for reader in old.consumers:
                reader.operands = tuple(new if o is old else o for o in reader.operands)
            new.consumers += old.consumers
            new.leaves |= old.leaves
        self.__dict__.pop("dependents", None)


__all__ = ["Edge", "Graph", "Operator", "Value"]
