"""What a user calls an ONNX node."""

from __future__ import annotations

import ast

import onnx

_SCOPES = "pkg.torch.onnx.name_scopes"


def name_of(node: onnx.NodeProto) -> str:
    """Return a node's name, behind the path of the PyTorch module that it comes from.

    PyTorch's exporter numbers nodes (``node_linear_3``) and writes the modules around one, the
    traced operator last, into its metadata: ``['', 'layer.0', 'layer.0.ff', 'linear_3']`` makes
    ``layer.0.ff/node_linear_3``.
    """
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            try:
                _, *modules, _ = ast.literal_eval(entry.value)
            except (SyntaxError, TypeError, ValueError):  # of another exporter, or by hand
                break
            if modules and isinstance(modules[-1], str) and modules[-1]:
                return f"{modules[-1]}/{node.name or node.op_type}"
    return str(node.name)
