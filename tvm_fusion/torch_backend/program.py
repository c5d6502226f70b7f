"""A graph that AOTAutograd traced, as a ``torch.export`` program of tensors alone.

arguments of the graph      what becomes of them
tensor                      an input, in the order of its memory (see :func:`memory_order`)
tensor, frozen              a weight of the program
integer of a shape          computed in the graph from the tensor whose extent it is
other integer or float      a constant: a program for each value
copy_ into an argument      an output that is written in place of the argument
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch._export.verifier import load_verifier
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from ..frontend.dimensions.symbolic import identifier

_ATEN = torch.ops.aten


@dataclass(frozen=True)
class Argument:
    """An input of a program."""

    index: int  # of the graph's arguments
    name: str  # in the program
    # Axes of the argument in the order of its memory, where that is another.
    order: tuple[int, ...] | None


@dataclass(frozen=True)
class Computed:
    """A result that is the program's output of a number, permuted by ``axes`` where given."""

    position: int
    axes: tuple[int, ...] | None = None
    is_complex: bool = False  # the output is real, with a last axis of two


@dataclass(frozen=True)
class Given:
    """A result that is an argument as it is."""

    index: int


@dataclass(frozen=True)
class Extent:
    """A result that is an integer over the symbols of shapes."""

    expression: Any


@dataclass(frozen=True)
class Plain:
    """A result that is None or a number."""

    value: Any


Result = Computed | Given | Extent | Plain


@dataclass(frozen=True)
class TensorProgram:
    """A graph as a program."""

    program: torch.export.ExportedProgram | None  # none where the graph computes no tensor
    arguments: tuple[Argument, ...]  # the program's inputs, in order
    # How the graph's results come of its arguments and the program's outputs.
    results: tuple[Result, ...]
    in_place: Mapping[str, str]  # by input that is written to, the output that is to lie there
    # By argument that is written to as a whole, the number of the output that it is to hold.
    copies: Mapping[int, int]


def symbol_places(values: Sequence[Any]) -> dict[Any, tuple[int, int]]:
    """Find an argument and an axis whose extent is a symbol, for each symbol that has one."""
    places: dict[Any, tuple[int, int]] = {}
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            for axis, extent in enumerate(value.shape):
                if isinstance(extent, torch.SymInt) and isinstance(extent.node.expr, sympy.Symbol):
                    places.setdefault(extent.node.expr, (index, axis))
    return places


def unplaced(values: Sequence[Any]) -> tuple[int, ...]:
    """List arguments that are numbers which no shape tells: each value has its own program."""
    places = symbol_places(values)
    return tuple(
        i
        for i, value in enumerate(values)
        if isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))
        and not (isinstance(value, torch.SymInt) and value.node.expr in places)
    )


def memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Order a tensor's axes as they lie in memory, where that is dense and another order.

    Symbolic extents are taken at their hints.
    """
    shape, strides = ([hint(e) for e in values] for values in (tensor.shape, tensor.stride()))
    order = tuple(sorted(range(len(shape)), key=lambda i: (-strides[i], shape[i] == 1, i)))
    size = 1
    for axis in reversed(order):
        if shape[axis] != 1 and strides[axis] != size:
            return None
        size *= shape[axis]
    if size == 0:
        return None
    moved = [axis for axis in order if shape[axis] != 1]
    return None if moved == sorted(moved) else order


def hint(extent: Any) -> int:
    """Return an extent in the call that was traced."""
    return int(extent.node.hint) if isinstance(extent, torch.SymInt) else int(extent)


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation that undoes one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def tensor_program(
    traced: fx.GraphModule,
    values: Sequence[Any],
    names: Mapping[int, str],
    weights: Mapping[int, torch.Tensor],
    numbers: Mapping[int, Any],
    may_write: bool = True,
) -> TensorProgram:
    """Make a program of a graph.

    Parameters
    ----------
    traced : torch.fx.GraphModule
        Of ATen operators, without mutations but by ``copy_`` into its arguments; it is copied.
    values
        The graph's arguments as they were traced: fake tensors and symbolic numbers.
    names
        What to call arguments.
    weights
        Arguments that become weights of the program.
    numbers : mapping of int to (int or float)
        Values of the arguments that :func:`unplaced` lists.
    may_write
        Whether arguments may be written to in place, where one position of them changes.
    """
    graph, copied = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(traced.graph, copied))
    gm = fx.GraphModule(traced, graph)  # with the tensors that the graph names
    placeholders = graph.find_nodes(op="placeholder")
    _settle_numbers(graph, placeholders, values, numbers)
    stored, specs = _lift_constants(gm)
    arguments = []
    taken, paths = {spec.arg.name for spec in specs}, set(stored)
    tensors = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
    inputs: dict[fx.Node, Argument] = {}
    for index in sorted(tensors, key=lambda i: i not in weights):
        node = placeholders[index]
        path = names.get(index, f"input_{index}")
        name = _fresh(identifier(path).lower(), taken)  # as torch writes names of inputs
        node.name = node.target = name
        if index in weights:
            path = _fresh(path, paths)
            stored[path] = weights[index]
            specs.append(_weight(name, path, weights[index]))
            continue
        specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(name), None))
        inputs[node] = Argument(index, name, memory_order(values[index]))
        arguments.append(inputs[node])
    written = _take_copies(graph)
    for node, argument in inputs.items():
        if argument.order is not None:
            _permute_input(graph, node, argument.order)
    results, outputs = _results(graph, placeholders)
    in_place: dict[str, str] = {}
    copies: dict[int, int] = {}
    for node, value in written.items():
        if may_write and _is_one_position(node, value):
            in_place[inputs[node].name] = f"output_{len(outputs)}"
        else:
            copies[inputs[node].index] = len(outputs)
        outputs.append(value)
    if not outputs:
        return TensorProgram(None, tuple(arguments), tuple(results), {}, {})
    (end,) = graph.find_nodes(op="output")
    end.args = (tuple(outputs),)
    graph.eliminate_dead_code()
    _order_placeholders(graph, [spec.arg.name for spec in specs])
    gm.recompile()
    program = _exported(gm, specs, [node.name for node in outputs], stored)
    return TensorProgram(program, tuple(arguments), tuple(results), in_place, copies)


def _weight(name: str, path: str, value: torch.Tensor) -> InputSpec:
    if isinstance(value, torch.nn.Parameter):
        return InputSpec(InputKind.PARAMETER, TensorArgument(name), path)
    return InputSpec(InputKind.BUFFER, TensorArgument(name), path, True)


def _settle_numbers(
    graph: fx.Graph,
    placeholders: Sequence[fx.Node],
    values: Sequence[Any],
    numbers: Mapping[int, Any],
) -> None:
    """Replace arguments that are numbers by extents of tensors, or by their values."""
    places = symbol_places(values)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for index, (node, value) in enumerate(zip(placeholders, values, strict=True)):
        if isinstance(value, torch.Tensor):
            continue
        if index in numbers:
            node.replace_all_uses_with(numbers[index])
        elif value is not None:
            owner, axis = places[value.node.expr]
            with graph.inserting_before(first):
                extent = graph.call_function(_ATEN.sym_size.int, (placeholders[owner], axis))
            extent.meta["val"] = value
            node.replace_all_uses_with(extent)
        graph.erase_node(node)


def _lift_constants(gm: fx.GraphModule) -> tuple[dict[str, torch.Tensor], list[InputSpec]]:
    """Make inputs of tensors that a graph holds, as programs have them."""
    stored: dict[str, torch.Tensor] = {}
    specs = []
    for node in gm.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(node.target)(gm)
        if not isinstance(value, torch.Tensor):
            continue
        name = f"c_{len(stored)}"
        with gm.graph.inserting_before(next(iter(gm.graph.nodes))):
            lifted = gm.graph.placeholder(name)
        lifted.name = name
        lifted.meta = dict(node.meta)
        node.replace_all_uses_with(lifted)
        gm.graph.erase_node(node)
        stored[name] = value
        specs.append(InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name), name))
    return stored, specs


def written_arguments(traced: fx.GraphModule) -> set[int]:
    """List the arguments that a graph copies into."""
    placeholders = traced.graph.find_nodes(op="placeholder")
    copies = traced.graph.find_nodes(op="call_function", target=_ATEN.copy_.default)
    return {placeholders.index(node.args[0]) for node in copies}


def _is_one_position(node: fx.Node, value: fx.Node) -> bool:
    """Whether what an argument becomes is the argument with one position written."""
    if value.target != _ATEN.index_copy.default or value.args[0] is not node:
        return False
    index = value.args[2]
    return len(node.users) == 1 and isinstance(index, fx.Node) and index.meta["val"].numel() == 1


def _take_copies(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Take out the copies into arguments, and list what is copied by argument."""
    written: dict[fx.Node, fx.Node] = {}
    for node in graph.find_nodes(op="call_function", target=_ATEN.copy_.default):
        target, value = node.args[:2]
        assert isinstance(target, fx.Node)
        assert isinstance(value, fx.Node)
        node.replace_all_uses_with(value)
        graph.erase_node(node)
        written[target] = value
    return written


def _permute_input(graph: fx.Graph, node: fx.Node, order: tuple[int, ...]) -> None:
    """Let a placeholder be a tensor in the order of its memory, permuted to what readers expect."""
    value = node.meta["val"]
    with graph.inserting_after(node):
        permuted = graph.call_function(_ATEN.permute.default, (node, list(inverse(order))))
    node.replace_all_uses_with(permuted, delete_user_cb=lambda user: user is not permuted)
    permuted.meta["val"] = value
    with value.fake_mode:
        node.meta["val"] = value.permute(order)
    node.meta.pop("tensor_meta", None)


def _permuted(graph: fx.Graph, node: fx.Node, order: tuple[int, ...]) -> fx.Node:
    """Permute a value before it is returned."""
    (end,) = graph.find_nodes(op="output")
    with graph.inserting_before(end):
        moved = graph.call_function(_ATEN.permute.default, (node, list(order)))
    with node.meta["val"].fake_mode:
        moved.meta["val"] = node.meta["val"].permute(order)
    return moved


def _results(
    graph: fx.Graph, placeholders: Sequence[fx.Node]
) -> tuple[list[Result], list[fx.Node]]:
    """Tell how each result comes about, and list the nodes that the program is to return."""
    (end,) = graph.find_nodes(op="output")
    results: list[Result] = []
    outputs: dict[fx.Node, tuple[fx.Node, int]] = {}
    for value in end.args[0]:
        if not isinstance(value, fx.Node):
            results.append(Plain(value))
        elif value in placeholders:
            results.append(Given(placeholders.index(value)))
        elif not isinstance(value.meta["val"], torch.Tensor):
            results.append(Extent(value.meta["val"].node.expr))
        else:
            order = memory_order(value.meta["val"])
            if value not in outputs:
                moved = value if order is None else _permuted(graph, value, order)
                outputs[value] = moved, len(outputs)
            axes = None if order is None else inverse(order)
            is_complex = value.meta["val"].is_complex()
            results.append(Computed(outputs[value][1], axes, is_complex))
    return results, [moved for moved, _ in outputs.values()]


def _order_placeholders(graph: fx.Graph, names: Sequence[str]) -> None:
    nodes = {node.name: node for node in graph.find_nodes(op="placeholder")}
    for name in reversed(names):
        next(iter(graph.nodes)).prepend(nodes[name])


def _exported(
    gm: fx.GraphModule,
    inputs: list[InputSpec],
    outputs: Sequence[str],
    stored: Mapping[str, torch.Tensor],
) -> torch.export.ExportedProgram:
    users = [spec for spec in inputs if spec.kind is InputKind.USER_INPUT]
    in_spec = pytree.tree_flatten(((0,) * len(users), {}))[1]
    out_spec = pytree.tree_flatten((0,) * len(outputs))[1]
    results = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name), None) for name in outputs]
    signature = ModuleCallSignature(
        [spec.arg for spec in users],
        [spec.arg for spec in results],
        in_spec,
        out_spec,
        [spec.arg.name for spec in users],
    )
    constants = {spec.target for spec in inputs if spec.kind is InputKind.CONSTANT_TENSOR}
    return torch.export.ExportedProgram(
        root=gm,
        graph=gm.graph,
        graph_signature=ExportGraphSignature(inputs, results),
        state_dict={name: value for name, value in stored.items() if name not in constants},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", signature)],
        constants={name: value for name, value in stored.items() if name in constants},
        verifiers=[load_verifier("TRAINING")],
    )


def _fresh(name: str, taken: set[str]) -> str:
    """Make a name that is not taken, and take it."""
    numbered = (f"{name}_{i}" for i in range(1, len(taken) + 2))
    taken.add(chosen := next(one for one in (name, *numbered) if one not in taken))
    return chosen
