"""An operator call as converters see it: arguments by name, result types, casts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from ...errors import UserError
from ..half.intermediates import widened
from ..registry import Unsupported
from ..tensor_types import HALF, accumulation_dtype, dtype_of, is_integer

# What an argument of this name says does not change values: where and how a tensor is stored.
STORAGE = frozenset(
    ("device", "pin_memory", "non_blocking", "memory_format", "implicit", "layout", "requires_grad")
)

FLOAT8 = {torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2"}
DTYPES = {
    **FLOAT8,
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.bool: "bool",
}
# Of their parts; a complex tensor is a pair of real ones.
COMPLEX = {
    torch.complex32: "float16",
    torch.complex64: "float32",
    torch.complex128: "float64",
}
Convert = Callable[["Call"], Any]


class Call:
    """A node of the graph with its arguments bound to their names, defaults filled in.

    What a converter never read must have its default: :meth:`ignored` lists what has not. So no
    argument is ignored silently.

    Parameters
    ----------
    node : torch.fx.Node
        The node, of an operator with a schema.
    importer : BaseFXGraphImporter
        TVM's importer, which holds what is converted so far.
    """

    def __init__(self, node: fx.Node, importer: Any):
        self.node, self.importer = node, importer
        self.emit = importer.block_builder.emit
        self.given = bound(node)
        self._read: set[str] = set()

    def raw(self, name: str) -> Any:
        """Return an argument as the graph has it: nodes, numbers, lists."""
        self._read.add(name)
        return self.given[name]

    def __getitem__(self, name: str) -> Any:
        """Return an argument, with expressions for what was computed."""
        return self.importer._retrieve_args(self.raw(name))

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument that the operator's other overloads lack, or a default."""
        return self[name] if name in self.given else default

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def ignored(self) -> list[str]:
        """List arguments that were given and never read."""
        defaults = {
            a.name: a.default_value for a in self.node.target._schema.arguments if _has_default(a)
        }
        return [
            name
            for name, value in self.given.items()
            if name not in self._read
            and name not in STORAGE
            and not (name in defaults and _same(value, defaults[name]))
        ]

    def meta(self, name: str) -> Any:
        """Return an argument with torch's own fake tensors and symbols for what was computed."""
        return fx.map_arg(self.raw(name), lambda n: n.meta["val"])

    def tensor(self, name: str, dtype: str | None = None) -> Any:
        """Return an argument as a tensor, cast to ``dtype`` where one is given."""
        return self.as_tensor(self[name], dtype)

    def as_tensor(self, value: Any, dtype: str | None = None) -> Any:
        """Make a tensor of a tensor, a number or a symbolic extent."""
        if isinstance(value, bool | int | float):
            return relax.const(_wrapped(value, dtype), dtype or _dtype_of_number(value))
        if not isinstance(getattr(value, "ty", None), relax.TensorType):
            return self.importer._prim_value_to_scalar_tensor(value, dtype or "int64")
        return self.cast(value, dtype)

    def cast(self, value: Any, dtype: str | None) -> Any:
        """Cast a tensor where its dtype is another."""
        if dtype is None or dtype_of(value) == dtype:
            return value
        if dtype == "bool":  # Relax's cast to bool keeps the lowest bit of what it is given.
            return self.emit(relax.op.not_equal(value, relax.const(0, dtype_of(value))))
        return self.emit(relax.op.astype(value, dtype))

    def wide(self, value: Any) -> Any:
        """Cast a tensor to the dtype in which sums of its own are taken."""
        return self.cast(value, accumulation_dtype(dtype_of(value)))

    def number(self, name: str, dtype: str) -> Any:
        """Return a number as a constant of ``dtype``."""
        return relax.const(self[name], dtype)

    @property
    def out(self) -> Any:
        """Torch's fake tensor, or tuple of them, for the result."""
        return self.node.meta["val"]

    @property
    def dtype(self) -> str:
        """The result's dtype; that of its parts for a complex one."""
        return real_name_of(self.out.dtype)

    def shape(self, fake: torch.Tensor | None = None) -> list[Any]:
        """Return the extents of a fake tensor, the result's by default, as Relax has them."""
        fake = self.out if fake is None else fake
        return [self.extent(e) for e in fake.shape]

    def extent(self, extent: int | torch.SymInt) -> Any:
        """Return an extent as Relax has it: symbols become variables of the same name."""
        return extent if isinstance(extent, int) else self.importer.extent(extent)

    def is_used(self, number: int) -> bool:
        """Say whether a result of several is used."""
        return any(
            user.target.__name__ == "getitem" and user.args[1] == number
            if user.op == "call_function"
            else True
            for user in self.node.users
        )


class WideCall(Call):
    """A call whose tensors of half types are wider ones, and its results with them.

    What torch says of them (:meth:`meta`, :attr:`out`) stays: shapes, and dtypes that tensors here
    are no longer of.
    """

    def __init__(self, node: fx.Node, importer: Any, wide: str) -> None:
        super().__init__(node, importer)
        self._wide = wide

    def __getitem__(self, name: str) -> Any:
        """Return an argument, its tensors of half types cast."""
        return widened(super().__getitem__(name), self.emit, self._wide)

    def cast(self, value: Any, dtype: str | None) -> Any:
        """Cast a tensor where its dtype is another; to a half type as little as from it."""
        return super().cast(value, self._widened(dtype))

    def as_tensor(self, value: Any, dtype: str | None = None) -> Any:
        """Make a tensor; where one of a half type is asked for, of the wider one."""
        return super().as_tensor(value, self._widened(dtype))

    @property
    def dtype(self) -> str:
        """The dtype in which the result is computed."""
        return self._widened(super().dtype) or ""

    def _widened(self, dtype: str | None) -> str | None:
        return self._wide if dtype in HALF else dtype


def bound(node: fx.Node) -> dict[str, Any]:
    """Bind a node's arguments to the names of its operator's schema, with defaults."""
    schema = node.target._schema.arguments
    names = [a.name for a in schema if not a.kwarg_only]
    values = dict(zip(names, node.args, strict=False))
    for argument in schema:
        if argument.name in node.kwargs:
            values[argument.name] = node.kwargs[argument.name]
        elif argument.name not in values and _has_default(argument):
            values[argument.name] = argument.default_value
    return values


def static(extents: Sequence[Any]) -> list[int]:
    """Return extents that are all numbers."""
    if not all(isinstance(e, int) for e in extents):
        raise Unsupported("on a symbolic extent", "give the dimension a fixed extent")
    return [int(e) for e in extents]


def is_zero(extent: Any) -> bool:
    """Say whether an extent is 0; one that depends on values cannot be asked."""
    return isinstance(extent, int) and extent == 0


def is_empty(fake: torch.Tensor) -> bool:
    """Say whether a tensor has no elements, whatever extents that cannot be asked are."""
    return any(map(is_zero, fake.shape))


def name_of(dtype: torch.dtype) -> str:
    """Return Relax's name of a dtype."""
    if dtype not in DTYPES:
        what = str(dtype).removeprefix("torch.")
        raise Unsupported(f"on {what} tensors", f"compute without {what} tensors")
    return DTYPES[dtype]


def real_name_of(dtype: torch.dtype) -> str:
    """Return Relax's name of a dtype, for a complex one that of its parts."""
    return COMPLEX[dtype] if dtype in COMPLEX else name_of(dtype)


def refusal(operator: str, error: Unsupported) -> UserError:
    """Say that an operator cannot be converted."""
    return UserError(f"{operator} {error.reason} is not supported", None, error.advice)


def _has_default(argument: Any) -> bool:
    return argument.has_default_value()


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, list | tuple) and isinstance(default, list | tuple):
        return list(value) == list(default)
    return (type(value) is type(default) and value == default) or value is default


def _dtype_of_number(value: float) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int64" if isinstance(value, int) else name_of(torch.get_default_dtype())


def _wrapped(value: float, dtype: str | None) -> Any:
    """Wrap a number around as torch does when it becomes an element of an integer tensor."""
    if dtype is not None and is_integer(dtype):
        return np.array(int(value)).astype(dtype)
    return bool(value) if dtype == "bool" else value
