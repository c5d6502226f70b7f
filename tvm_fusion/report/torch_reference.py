"""Results of an exported program from PyTorch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from ..deploy.runtime.torch_tensors import to_torch
from ..errors import UserError
from ..frontend.torch_program.importer import names_of_buffers, output_names


def run_program(
    program: torch.export.ExportedProgram, inputs: Mapping[str, np.ndarray], source: str
) -> dict[str, np.ndarray]:
    """Run a program on the inputs of its artifact.

    Parameters
    ----------
    inputs
        By name, buffers that the program changes among them; floats of another width than the
        program's are converted.
    source
        What to call the program in errors.

    Returns
    -------
    dict of str to numpy.ndarray
        Results by the artifact's names, and the next values of what the program changes, in
        float64 where numpy lacks their type.

    Raises
    ------
    UserError
        If it does not take the inputs.
    """
    specs = program.graph_signature.input_specs
    own = {s.target: s.arg.name for s in specs if s.kind is InputKind.BUFFER}
    passed = {target: name for target, name in own.items() if {target, name} & inputs.keys()}
    taken = {s.arg.name for s in specs} - {*passed.values()}
    called = names_of_buffers(passed, taken.union(output_names(program)))
    buffers = {called.get(name, name): target for target, name in own.items()}
    fakes = {node.name: node.meta.get("val") for node in program.graph.nodes}
    fakes |= {name: fakes[own[target]] for name, target in buffers.items()}
    tensors = {name: _tensor(array, fakes.get(name)) for name, array in inputs.items()}
    try:
        module = program.module()
        for name in tensors.keys() & buffers.keys():
            module.get_buffer(buffers[name]).copy_(tensors[name])
        leaves = [
            s.arg.value if isinstance(s.arg, ConstantArgument) else tensors[s.arg.name]
            for s in specs
            if s.kind is InputKind.USER_INPUT
        ]
        arguments, keywords = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
        with torch.no_grad():
            results = pytree.tree_leaves(module(*arguments, **keywords))
    except Exception as error:  # guard: a module raises anything; the sentence says which and why
        (reason, *_) = str(error).strip().splitlines() or [repr(error)]
        raise UserError(
            f"PyTorch cannot run {source!r} ({reason})",
            "the program that the artifact was compiled from, and inputs that it takes",
        ) from error
    found = dict(tensors)
    found |= {name: module.get_buffer(buffers[name]) for name in tensors.keys() & buffers.keys()}
    names = output_names(program)
    found |= {name: r for name, r in zip(names, results, strict=True) if r is not None}
    return {name: _array(value) for name, value in found.items()}


def _tensor(array: np.ndarray, fake: Any) -> torch.Tensor:
    tensor = to_torch(torch, array.copy())
    if not isinstance(fake, torch.Tensor):
        return tensor
    if fake.is_complex():  # passed as its parts
        return torch.view_as_complex(tensor)
    return tensor.to(fake.dtype) if fake.is_floating_point() else tensor


def _array(value: Any) -> np.ndarray:
    tensor = torch.as_tensor(value).detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    try:
        return tensor.numpy()
    except TypeError:  # bfloat16, float8
        return tensor.double().numpy()
