"""Arguments of a call against the signature: names, shapes, dtypes, ranges. Imports no TVM."""

import ast
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ...errors import UserError
from ...signature import DimRange, EqualExtents, Signature, TensorSpec
from ...words import counted

_NAME = re.compile(r"\b[A-Za-z_]\w*")
_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def order(specs: Sequence[TensorSpec], arguments: Mapping[str, Any]) -> list[Any]:
    """Bring arguments, all of the inputs, into call order; raises as :func:`check_names` does."""
    check_names(specs, arguments)
    return [arguments[spec.name] for spec in specs]


def by_name(
    names: Sequence[str], positional: Sequence[Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Name inputs that are given in order.

    Raises
    ------
    UserError
        For more inputs than there are, and one that is given by its name as well.
    """
    if len(positional) > len(names):
        expected = f"the inputs {', '.join(map(repr, names)) or 'none'}"
        raise UserError(f"{counted(len(positional), 'input')} in order", expected)
    given = dict(zip(names, positional, strict=False))
    if twice := [name for name in given if name in inputs]:
        raise UserError(f"input {twice[0]!r} is given twice", "each input once")
    return {**given, **inputs}


def check_names(
    specs: Sequence[TensorSpec], arguments: Mapping[str, Any], is_complete: bool = True
) -> None:
    """Check that arguments are some inputs, or all of them.

    Raises
    ------
    UserError
        For a name that the function does not have, or one that is missing.
    """
    names = dict.fromkeys(spec.name for spec in specs)
    if not isinstance(arguments, Mapping):
        raise UserError(
            f"the inputs are a {type(arguments).__name__}", f"arrays by name ({_listed(names)})"
        )
    unknown = [name for name in arguments if name not in names]
    missing = [name for name in names if name not in arguments] if is_complete else []
    if unknown or missing:
        found = [f"unknown input {name!r}" for name in unknown]
        found += [f"missing input {name!r}" for name in missing]
        raise UserError(", ".join(found), f"the inputs {_listed(names)}")


def check(
    specs: Sequence[TensorSpec],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    dims: Mapping[str, DimRange],
    known: Mapping[str, int] = MappingProxyType({}),
    equal: Sequence[EqualExtents] = (),
) -> dict[str, int]:
    """Check shapes and dtypes, and find the extents of the symbolic dimensions.

    Parameters
    ----------
    dims
        Ranges of the symbolic dimensions.
    known
        Extents of symbolic dimensions that other inputs have fixed.
    equal
        Extents that have to be equal.

    Returns
    -------
    dict of str to int
        The extent of every symbolic dimension that a shape names.

    Raises
    ------
    UserError
        At the first input that does not fit.
    """
    extents = dict(known)
    symbolic = []
    for spec, shape, dtype in zip(specs, shapes, dtypes, strict=True):
        if dtype == spec.dtype and shape == spec.shape:
            continue  # the usual case, and quick
        symbolic.append((spec, shape))
        if dtype.startswith("complex"):
            raise UserError(
                f"input {spec.name!r} has dtype {dtype}",
                f"{spec.dtype} with real and imaginary parts along the last axis",
                "pass torch.view_as_real(x), or np.stack([x.real, x.imag], -1)",
            )
        if dtype != spec.dtype:
            raise UserError(
                f"input {spec.name!r} has dtype {dtype}", spec.dtype, f"cast it to {spec.dtype}"
            )
        if len(shape) != len(spec.shape):
            raise _misshapen(spec, shape)
        for extent, size in zip(spec.shape, shape, strict=True):
            if isinstance(extent, str) and extent.isidentifier():
                if extents.setdefault(extent, size) != size:
                    earlier = f"{extent} is {extents[extent]} in an earlier input"
                    raise _misshapen(spec, shape, earlier)
                _check_range(spec, extent, size, dims)
            elif isinstance(extent, int) and extent != size:
                raise _misshapen(spec, shape)
    for spec, shape in symbolic:
        for extent, size in zip(spec.shape, shape, strict=True):
            if isinstance(extent, str) and not extent.isidentifier():
                for name, value in _solved(extent, size, extents).items():
                    extents[name] = value
                    _check_range(spec, name, value, dims)
    for spec, shape in symbolic:
        for extent, size in zip(spec.shape, shape, strict=True):
            if isinstance(extent, str) and evaluate(extent, extents) not in (None, size):
                raise _misshapen(spec, shape)
    for pair in equal:
        _check_equal(pair, extents, symbolic)
    return extents


def _check_equal(
    pair: EqualExtents,
    extents: Mapping[str, int],
    given: Sequence[tuple[TensorSpec, tuple[int, ...]]],
) -> None:
    one, other = evaluate(pair.one, extents), evaluate(pair.other, extents)
    if one is None or other is None or one == other:
        return
    names = {n for text in (pair.one, pair.other) for n in _NAME.findall(text)} & extents.keys()
    inputs = [
        f"input {spec.name!r} has shape {shape}"
        for spec, shape in given
        if names & {n for extent in spec.shape for n in _NAME.findall(str(extent))}
    ]
    raise UserError(
        f"{' and '.join(inputs) or 'an input does not fit'}, with which {pair.where} joins "
        f"{pair.one} = {one} and {pair.other} = {other}",
        "sizes for which these are equal",
    )


def _solved(extent: str, size: int, extents: Mapping[str, int]) -> dict[str, int]:
    """Find the one unknown dimension of an extent such as ``4*h``, rounded down."""
    try:
        tree = ast.parse(extent, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    unknown = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - extents.keys()
    if len(unknown) != 1:
        return {}
    (name,) = unknown
    at_zero, at_one = (evaluate(extent, {**extents, name: value}) for value in (0, 1))
    if at_zero is None or at_one is None or at_one == at_zero:
        return {}
    return {name: (size - at_zero) // (at_one - at_zero)}


def _misshapen(spec: TensorSpec, shape: tuple[int, ...], advice: str | None = None) -> UserError:
    return UserError(f"input {spec.name!r} has shape {shape}", _text(spec), advice)


def check_out(signature: Signature, out: Any) -> None:
    """Check the names and kinds of the arrays that a caller provides for outputs.

    Raises
    ------
    UserError
        For anything but a mapping of the function's outputs to arrays.
    """
    if out is None:
        return
    names = [spec.name for spec in signature.outputs]
    if not isinstance(out, Mapping):
        raise UserError(
            f"out is a {type(out).__name__}",
            f"arrays by output name ({_listed(names)})",
            "pass an input that is called 'out' through run()",
        )
    for name, array in out.items():
        if name not in names:
            raise UserError(f"unknown output {name!r}", f"one of {_listed(names)}")
        if not hasattr(array, "__dlpack__"):
            raise UserError(
                f"the array for output {name!r} is a {type(array).__name__}",
                "a numpy array or one with __dlpack__",
            )


def evaluate(extent: int | str, extents: Mapping[str, int]) -> int | None:
    """Compute an extent such as ``batch * 4``; ``None`` if it names an unknown dimension."""
    if isinstance(extent, int):
        return extent
    try:
        return _evaluate(ast.parse(extent, mode="eval").body, extents)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr, extents: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return extents[node.id]
    if isinstance(node, ast.BinOp):
        apply = _OPERATORS[type(node.op)]
        return apply(_evaluate(node.left, extents), _evaluate(node.right, extents))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        values = [_evaluate(argument, extents) for argument in node.args]
        return {"max": max, "min": min}[node.func.id](values)
    raise KeyError(ast.dump(node))


def _check_range(spec: TensorSpec, name: str, size: int, dims: Mapping[str, DimRange]) -> None:
    allowed = dims.get(name)
    if allowed is None or size in allowed:
        return
    raise UserError(
        f"input {spec.name!r} has {name} = {size}",
        allowed.sentence,
        f"compile with --dim {name}={allowed.with_extent(size).text}" if size > 0 else None,
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _text(spec: TensorSpec) -> str:
    return "(" + ", ".join(map(str, spec.shape)) + ("," if len(spec.shape) == 1 else "") + ")"
