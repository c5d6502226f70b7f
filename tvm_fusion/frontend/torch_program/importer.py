"""Import exported PyTorch programs: decompose, preflight, then TVM's importer."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
)
from torch.utils import _pytree as pytree

from ...config import FusionConfig
from ...core.constants.evaluate import operand_of
from ...core.constants.weight_names import WeightNames, constants, tracking
from ...core.decisions import Decision, record
from ...core.names.source import attach
from ...errors import UserError
from ...signature import DimRange
from .. import Imported
from ..control_flow.lifted import finished
from ..dimensions.findings import Findings
from ..dimensions.signatures import signature_of
from ..dimensions.steps import Steps
from ..dimensions.symbolic import UNLIMITED
from ..finish import finish, without_bounds
from ..quiet import end_blocks, quiet_importer
from ..reasons import reason_in_words
from ..relax import bind
from ..torch_ops import Importer, operator_name, unsupported
from ..torch_ops.complex_pairs import is_complex
from ..torch_ops.importer import place_of
from ..torch_ops.operator_errors import advice
from .call_tree import call_of
from .decompose import calls, decompose
from .dims import (
    as_table,
    chosen_extents,
    derived_extents,
    in_names,
    input_extents,
    user_names,
    without_ranges_of_expressions,
)

SOURCE = "ExportedProgram"
_NOT_OF_NUMPY = {
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
}
_SAMPLES = 1024  # bytes of an array that are looked at first


def from_exported_program(
    program: torch.export.ExportedProgram, config: FusionConfig, source: str = SOURCE
) -> Imported:
    """Import an exported program; see :func:`tvm_fusion.frontend.import_model`.

    A dynamic dimension is called as its ``torch.export.Dim``, or ``<input>_<axis>`` where it has
    no name, or was read from a file, which keeps none. It keeps the range it was exported with
    unless ``config.dims`` says otherwise. What the program changes in place is passed: see
    :func:`with_state`.
    """
    names_of_dims = user_names(program)
    without_ranges_of_expressions(program)
    program = decompose(program, source)
    call = call_of(program, output_names(program))
    program, buffers, state = with_state(program)
    returned = drop_none(program, source)
    _drop_constant_arguments(program)
    taken = {spec.arg.name for spec in program.graph_signature.input_specs} - {*buffers.values()}
    own = names_of_buffers(buffers, taken.union(returned))
    state = [own.get(name, name) for name in state]
    for name in state:
        sentence = f"{name} is changed by {source}; its next value is the output of the same name."
        record(Decision(source, name, "accepted", "state_returned", sentence))
    _tell_of_pairs(program, source)
    extents = input_extents(program)
    derived = derived_extents(extents)
    table = as_table(extents, derived, names_of_dims)
    proved = {
        str(symbol): DimRange(max(0, _finite(r.lower, 0)), _finite(r.upper))
        for symbol, r in program.range_constraints.items()
    }
    chosen, unbound = table.resolve(config.dims, proved)
    places = unsupported_operators(program)
    unknown = Counter({name: len(found) for name, found in places.items()})
    first = {name: found[0] for name, found in places.items()}
    instead = advice(name.partition(" ")[0] for name in unknown)
    Findings(operators=unknown, places=first, unbound=unbound, instead=instead).raise_if_any(source)
    importer = Importer(derived)
    try:
        with quiet_importer():
            mod = importer.from_exported_program(program, False, True, False, None)
    except UserError:
        end_blocks(importer.block_builder)
        raise
    except Exception as error:  # guard: told as the refusal's reason
        end_blocks(importer.block_builder)
        reason, remedy = reason_in_words(error)
        raise UserError(f"{source} cannot be imported ({reason})", None, remedy) from error
    mod = attach(mod, importer.sources.of)
    ranges = {name: value for name, value in chosen.items() if isinstance(value, DimRange)}
    whole = chosen_extents(derived, table, chosen)
    ranges |= {name: value for name, value in whole.items() if isinstance(value, DimRange)}
    fixed = {name: value for name, value in whole.items() if isinstance(value, int)}
    steps = Steps.among(ranges)
    mod = steps.bound(bind(without_bounds(finished(mod)), table, chosen, fixed))
    names = WeightNames(_named_constants(mod, program))
    with tracking(names):
        mod = finish(mod, config, steps.inner(ranges))
    signature = signature_of(mod["main"], None, [*returned, *state])
    if signature is None:
        raise UserError(f"{source} returns something other than tensors", "tensors")
    inputs = tuple(replace(spec, name=own.get(spec.name, spec.name)) for spec in signature.inputs)
    signature = replace(signature, inputs=inputs)
    signature = replace(in_names(steps.in_dims(signature), derived, table), call=call)
    return Imported(mod, {"main": signature}, ranges, names.of(mod), source)


def names_of_buffers(buffers: Mapping[str, str], taken: Collection[str]) -> dict[str, str]:
    """Call inputs that are buffers as the module does, unless something else is called so.

    Parameters
    ----------
    buffers
        By the module's name, the program's of the input.
    taken
        Names of all other inputs and of results.
    """
    return {arg: name for name, arg in buffers.items() if name not in taken}


def unsupported_operators(program: torch.export.ExportedProgram) -> dict[str, list[str]]:
    """List the places of operators that there is no converter for, branches included."""
    places: dict[str, list[str]] = {}
    for node in calls(program):
        if (error := unsupported(node)) is not None:
            name = f"{operator_name(node)} {error.reason}".rstrip()
            places.setdefault(name, []).append(place_of(node))
    return places


def _tell_of_pairs(program: torch.export.ExportedProgram, source: str) -> None:
    """Record how the complex inputs and outputs of a program are passed."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and is_complex(node):
            _tell_of_pair(node.name, "input", source)
        if node.op == "output":
            for given in node.all_input_nodes:
                if is_complex(given):
                    _tell_of_pair(given.name, "output", source)


def _tell_of_pair(name: str, kind: str, source: str) -> None:
    sentence = (
        f"The {kind} {name} is complex: it is passed as a real tensor with a last axis of two, "
        "the real and the imaginary part (torch.view_as_real)."
    )
    record(Decision(source, name, "accepted", "complex_as_pairs", sentence))


def _finite(bound: Any, otherwise: int = UNLIMITED) -> int:
    try:
        return min(int(bound), UNLIMITED)
    except (OverflowError, TypeError, AttributeError, ValueError):  # sympy's and torch's infinities
        return otherwise


def _named_constants(mod: Any, program: torch.export.ExportedProgram) -> Iterator[tuple[str, Any]]:
    """Match constants with parameters by their bits, in order: the importer keeps no names."""
    by_sample: dict[Hashable, list[tuple[str, np.ndarray]]] = {}
    for name, value in {**program.state_dict, **program.constants}.items():
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            given = _as_numpy(value)
            by_sample.setdefault(_sample(given), []).append((name, _bytes(given)))
    for const in constants(mod):
        array = operand_of(const)
        named, own = by_sample.get(_sample(array), []), _bytes(array)
        for place, (name, given) in enumerate(named):
            if np.array_equal(given, own):
                del named[place]
                yield name, const
                break


def _sample(array: np.ndarray) -> Hashable:
    """Tell arrays apart by some of their bytes: hashing all of them takes far longer."""
    flat = _bytes(array)
    return array.dtype.name, array.shape, flat[:: (flat.size // _SAMPLES) | 1].tobytes()


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _as_numpy(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.is_complex():  # stored as its parts
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype in _NOT_OF_NUMPY:
        bits = tensor.view(torch.int16 if tensor.dtype.itemsize == 2 else torch.uint8)
        return bits.numpy().view(_NOT_OF_NUMPY[tensor.dtype])
    return tensor.numpy()


# Results of an exported program: their names, and those that are no tensors.
def output_names(program: torch.export.ExportedProgram) -> list[str]:
    """Name outputs by their place in what the module returns: ``logits``, ``cache.0``, output_1."""
    spec = program.call_spec.out_spec
    leaves = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    names = []
    for path, index in pytree.tree_flatten_with_path(leaves)[0]:
        keys = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path]
        plain = all(key.isdigit() for key in keys)
        names.append("_".join(["output", *(keys or [str(index)])]) if plain else ".".join(keys))
    return names


def drop_none(program: torch.export.ExportedProgram, source: str) -> list[str]:
    """Take results that are None out of a program, and name the others.

    Parameters
    ----------
    program
        Its graph and signature are changed; the results that the module returns come first.
    source
        What to call it in errors.

    Returns
    -------
    list of str
        Names of the results that are left, as if nothing had been dropped.

    Raises
    ------
    UserError
        For results that are neither tensors nor numbers, and where all are None.
    """
    names = output_names(program)
    (node,) = program.graph.find_nodes(op="output")
    values: tuple[Any, ...] = tuple(node.args[0])
    for name, value in zip(names, values, strict=False):
        if value is None:
            sentence = f"The result {name} is None: it is not an output."
            record(Decision(source, name, "accepted", "none_dropped", sentence))
        elif not isinstance(value, torch.fx.Node | bool | int | float):
            what = f"{source} returns {name} of type {type(value).__name__}"
            raise UserError(what, "tensors", "return only tensors, or None")
    is_kept = [value is not None for value in values]
    if not any(is_kept):
        raise UserError(f"{source} returns no tensor", "at least one", "return a tensor")
    if not all(is_kept):
        specs = program.graph_signature.output_specs
        specs[:] = [spec for spec, kept in zip(specs, is_kept, strict=True) if kept]
        node.args = (tuple(value for value in values if value is not None),)
    return [name for name, kept in zip(names, is_kept, strict=False) if kept]


# Return the tensors that an exported program mutates as further outputs.
_CHANGES = {OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION}


def _drop_constant_arguments(program: torch.export.ExportedProgram) -> None:
    """Take out of a program's inputs the arguments that are no tensors, such as None or 3.

    They were compiled in when the program was exported.
    """
    specs = program.graph_signature.input_specs
    constant = [spec for spec in specs if isinstance(spec.arg, ConstantArgument)]
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in constant:
        node = nodes[spec.arg.name]
        node.replace_all_uses_with(spec.arg.value)
        program.graph.erase_node(node)
    specs[:] = [spec for spec in specs if spec not in constant]


def with_state(
    program: torch.export.ExportedProgram,
) -> tuple[torch.export.ExportedProgram, dict[str, str], list[str]]:
    """Pass what a program changes in place: a compiled function keeps nothing between its calls.

    A buffer that the program writes to, such as a cache of keys, becomes an input behind the
    others. What a call makes of it, and of an input that it writes to, are outputs behind the
    others.

    Parameters
    ----------
    program
        Decomposed, which says what is written to; its graph is changed.

    Returns
    -------
    ExportedProgram
        One that writes to nothing.
    dict of str to str
        By the module's name of a buffer that became an input, the input's.
    list of str
        The inputs whose next values are the last outputs, in their order.
    """
    signature = program.graph_signature
    changes = [spec for spec in signature.output_specs if spec.kind in _CHANGES]
    if not changes:
        return program, {}, []
    buffers = {s.target for s in changes if s.kind is OutputKind.BUFFER_MUTATION}
    inputs = _inputs_last(program, buffers)
    outputs = _changes_last(program)
    names = {s.target: s.arg.name for s in signature.input_specs if s.target in buffers}
    passed = torch.export.ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict=_without(program.state_dict, buffers),
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        constants=_without(program.constants, buffers),
        verifiers=program.verifiers,
    )
    return passed, names, [names.get(spec.target, spec.target) for spec in changes]


def _inputs_last(program: torch.export.ExportedProgram, buffers: set[str]) -> list[InputSpec]:
    """Move placeholders of buffers behind all others, and list what all are now."""
    specs = program.graph_signature.input_specs
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    kept = [s for s in specs if s.target not in buffers or s.kind is not InputKind.BUFFER]
    moved = [s for s in specs if s not in kept]
    last = nodes[specs[-1].arg.name]
    for spec in moved:
        node = nodes[spec.arg.name]
        if node is not last:
            last.append(node)
            last = node
    return kept + [
        replace(s, kind=InputKind.USER_INPUT, target=None, persistent=None) for s in moved
    ]


def _changes_last(program: torch.export.ExportedProgram) -> list[OutputSpec]:
    """Move what is written to behind the program's own results, and list what all are now."""
    (node,) = program.graph.find_nodes(op="output")
    pairs = list(zip(program.graph_signature.output_specs, node.args[0], strict=True))
    pairs.sort(key=lambda pair: pair[0].kind in _CHANGES)
    node.args = (tuple(value for _, value in pairs),)
    return [
        replace(s, kind=OutputKind.USER_OUTPUT, target=None) if s.kind in _CHANGES else s
        for s, _ in pairs
    ]


def _without(tensors: dict[str, torch.Tensor], names: set[str]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name not in names}
