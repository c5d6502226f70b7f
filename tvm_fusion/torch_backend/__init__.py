"""The backend of ``torch.compile``: ``torch.compile(model, backend="tvm_fusion")``.

dynamo reads Python's bytecode and hands over graphs, AOTAutograd makes each one functional, and
here every graph becomes an artifact:

``options``   ``options={...}``
``program``   a graph as a ``torch.export`` program of tensors
``graph``     programs of a graph, by its extents, and calls of them
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from ..errors import UserError
from ..frontend.torch_ops.importer import path_of
from ..frontend.torch_program.decompose import KEPT
from .graph import Graph
from .options import BackendOptions

__all__ = ["compile_graph"]


def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of dynamo: what ``backend="tvm_fusion"`` names.

    Parameters
    ----------
    gm : torch.fx.GraphModule
        The graph.
    example_inputs
        Its arguments in this call: parameters, buffers, inputs, integers.
    mode
        Of ``torch.compile``: none is taken.
    options
        See :class:`tvm_fusion.torch_backend.options.BackendOptions`.

    Returns
    -------
    callable
        Takes such arguments and returns the graph's results.

    Raises
    ------
    UserError
        For options that are not known, a graph that is to be trained, and operators that are not
        supported, all by name. dynamo shows it as the message of a ``BackendCompilerFailed``.

    Examples
    --------
    >>> compiled = torch.compile(model, backend="tvm_fusion", options={"freeze": True})
    >>> with torch.inference_mode():
    ...     y = compiled(x)
    """
    if mode is not None:
        raise UserError(f"mode {mode!r}", "options={...}", "leave mode out")
    chosen = BackendOptions.of(options)
    try:
        _refuse_training(gm)
        return _compiled(gm, example_inputs, chosen)
    except Exception as error:  # guard: a user who asked for it goes on in PyTorch
        if chosen.fallback:
            warnings.warn(f"PyTorch runs this graph: {error}", stacklevel=2)
            return gm
        if isinstance(error, UserError):
            raise _with_advice(error) from error
        raise


def _compiled(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: BackendOptions
) -> Callable[..., Any]:
    graphs: list[Graph] = []
    names = _names(gm)

    def take(traced: fx.GraphModule, values: Sequence[Any]) -> Graph:
        graphs.append(Graph(traced, values, names, example_inputs, options))
        return graphs[-1]

    backend = aot_autograd(
        fw_compiler=_refuse_backward,
        inference_compiler=take,
        keep_inference_input_mutations=True,
    )
    with _composed():
        compiled = backend(gm, example_inputs)
    for graph in graphs:
        graph.prepare()
    return compiled


def _composed() -> AbstractContextManager[None]:
    """Trace layers as one operator that torch would unroll or lower for one of its own kernels."""
    from torch.export.exported_program import (
        _override_composite_implicit_decomp,
        _special_op_to_preserve_cia,
    )

    operators = [getattr(torch.ops.aten, name).input for name in KEPT]
    operators.append(torch.ops.aten.scaled_dot_product_attention.default)
    return _override_composite_implicit_decomp(
        dict.fromkeys(operators, _special_op_to_preserve_cia)
    )


def _refuse_training(gm: fx.GraphModule) -> None:
    """Refuse a graph whose results want gradients."""
    (output,) = gm.graph.find_nodes(op="output")
    wants = (
        getattr(node.meta.get("example_value"), "requires_grad", False)
        for node in output.all_input_nodes
    )
    if torch.is_grad_enabled() and any(wants):
        _refuse_backward()


def _refuse_backward(*_: Any) -> Any:
    raise UserError(
        "the graph is to be trained: gradients are enabled and its parameters or inputs require "
        "them",
        "inference",
        "call the model under torch.inference_mode() or torch.no_grad()",
    )


def _with_advice(error: UserError) -> UserError:
    """Say how PyTorch can run what cannot be compiled."""
    if error.expected == "inference":
        return error
    advice = "options={'fallback': True} lets PyTorch run this graph"
    return UserError(error.found, error.expected, "; ".join(filter(None, (error.advice, advice))))


def _names(gm: fx.GraphModule) -> dict[int, str]:
    """Call the graph's arguments as the user does: ``fc.weight``, ``x``."""
    found = {}
    for index, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        source = getattr(node.meta.get("grapharg"), "source", None)
        found[index] = path_of(getattr(source, "name", "")) or node.name
    return found
