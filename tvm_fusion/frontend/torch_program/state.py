"""Return the tensors that an exported program mutates as further outputs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
)

_CHANGES = {OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION}


def with_state(
    program: torch.export.ExportedProgram,
) -> tuple[torch.export.ExportedProgram, list[str]]:
    """Pass what a program changes in place: a compiled function keeps nothing between its calls.

    A buffer that the program writes to, such as a cache of keys, becomes an input behind the
    others. What a call makes of it, and of an input that it writes to, are outputs behind the
    others.

    Parameters
    ----------
    program : ExportedProgram
        Decomposed, which says what is written to; its graph is changed.

    Returns
    -------
    ExportedProgram
        One that writes to nothing.
    list of str
        The inputs whose next values are the last outputs, in their order.
    """
    signature = program.graph_signature
    changes = [spec for spec in signature.output_specs if spec.kind in _CHANGES]
    if not changes:
        return program, []
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
    return passed, [names.get(spec.target, spec.target) for spec in changes]


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
