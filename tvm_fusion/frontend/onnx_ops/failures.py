"""Say at which node an import failed, of what inputs, and what can be done about it."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np
import onnx
from onnx import helper
from tvm import relax
from tvm.ir import GenericConst, is_prim_expr

from ..dimensions.extents import from_tir
from ..onnx_model.constants import SHAPE_OPERANDS
from ..onnx_model.types import ValueType
from .registry import STANDARD

# Inputs that are named; nodes such as Concat have hundreds.
_SHOWN = 6


def described(node: onnx.NodeProto, values: Mapping[str, Any]) -> str:
    """List the inputs of a node with their types: ``x float32 [n, 3]``.

    Parameters
    ----------
    values : mapping of str to object
        What stands for the values of its graph.

    Returns
    -------
    str
        Empty for a node without inputs.
    """
    names = [name for name in node.input if name]
    shown = [f"{name} {_type(values.get(name))}".rstrip() for name in names[:_SHOWN]]
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return f"its inputs: {', '.join([*shown, *more])}" if names else ""


def advice_for_failure(
    node: onnx.NodeProto, values: Mapping[str, Any], types: Mapping[str, ValueType], opset: int
) -> str:
    """Say what to do about a converter's internal error, by what is the cause.

    Parameters
    ----------
    values : mapping of str to object
        What stands for the values of its graph.
    types
        What ONNX infers about them.
    opset
        Version of the standard operators.
    """
    broken = _broken_rule(node, values, types, opset)
    if broken is not None:
        return f"correct the node, which ONNX's own rules do not allow: {broken}"
    operands = SHAPE_OPERANDS.get(node.op_type, ()) if node.domain in STANDARD else ()
    names = [node.input[i] for i in operands if i < len(node.input) and node.input[i]]
    computed = [n for n in names if not isinstance(values.get(n), GenericConst)]
    if computed:
        return f"make {', '.join(computed)} an initializer (a constant) of the model"
    return (
        "check its inputs and attributes; if ONNX allows them, its converter has a fault: report "
        "this sentence with the node"
    )


def _broken_rule(
    node: onnx.NodeProto, values: Mapping[str, Any], types: Mapping[str, ValueType], opset: int
) -> str | None:
    """Say why ONNX cannot infer the node's results; what it does not know, it does not judge."""
    names = [name for name in node.input if name]
    if not all(name in types for name in names) or node.domain not in STANDARD:
        return None
    try:
        infos = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(_numpy(types[name].dtype)), types[name].shape
            )
            for name in dict.fromkeys(names)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        constants = [
            onnx.numpy_helper.from_array(values[name].value.numpy(), name)
            for name in dict.fromkeys(names)
            if isinstance(values.get(name), GenericConst)
        ]
        graph = helper.make_graph([node], "node", infos, outputs, constants)
        opsets = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=opsets)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        context = onnx.checker.C.CheckerContext()
        context.ir_version, context.opset_imports = model.ir_version, {"": opset}
        onnx.checker.check_node(node, context)
    except onnx.shape_inference.InferenceError as error:
        return str(error).strip().rpartition("] ")[2]
    except onnx.checker.ValidationError as error:
        return str(error).strip().splitlines()[0]
    except Exception:  # guard: only a sentence depends on it
        return None
    return None


def _numpy(name: str) -> Any:
    return np.dtype(name)


def _type(value: Any) -> str:
    if isinstance(value, relax.ShapeExpr):
        return f"int64 [{len(value)}]"
    if isinstance(value, relax.Tuple):
        return f"a sequence of {len(value.fields)}"
    ty = getattr(value, "ty", None)
    if isinstance(ty, relax.TensorType):
        dtype = str(getattr(ty.dtype, "dtype", ty.dtype))
        if ty.shape is None:
            return f"{dtype} of {ty.ndim} axes" if ty.ndim >= 0 else dtype
        try:
            return f"{dtype} [{', '.join(str(from_tir(extent)) for extent in ty.shape)}]"
        except Exception:  # guard: only a sentence depends on it
            return dtype
    return "int64 []" if value is not None and is_prim_expr(value) else ""
