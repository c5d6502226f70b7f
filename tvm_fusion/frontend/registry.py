"""Register converters of a framework's operators, and say what one cannot convert.

A framework has one registry. Preflight, decomposition and the importer read it; nothing else says
which operators are supported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import UserError

_Convert = TypeVar("_Convert", bound=Callable[[Any], Any])


class Unsupported(Exception):
    """What a converter raises for what it cannot convert.

    Parameters
    ----------
    reason
        What the node asks for, behind the operator's name: ``"with antialias"``.
    advice
        What to do in the model instead.
    """

    def __init__(self, reason: str, advice: str | None = None):
        self.reason, self.advice = reason, advice
        super().__init__(reason)


@dataclass(frozen=True)
class Converter:
    """How an operator is converted."""

    # From a :class:`.onnx_ops.node.Node` or :class:`.torch_ops.call.Call` to Relax.
    convert: Callable[[Any], Any]
    # From a node of the framework's graph to the :class:`Unsupported` that says what about it the
    # converter cannot do, None where it can. Such a node is replaced by the framework's own
    # decomposition if there is one, and otherwise refused before anything is converted.
    refuses: Callable[[Any], Unsupported | None] | None = None
    # The first version of an ONNX operator that the converter knows; by default the first that ONNX
    # defines.
    since: int | None = None
    # Whether it takes shapes and extents as TVM's ONNX importer holds them; otherwise they become
    # tensors first.
    takes_extents: bool = False

    def refusal(self, node: Any) -> Unsupported | None:
        """Say what about a node the converter cannot do."""
        return self.refuses(node) if self.refuses is not None else None


class Registry(dict[str, Converter]):
    """The converters of a framework by operator.

    Parameters
    ----------
    key
        From an operator's name as it is written to the one that the registry uses.
    """

    def __init__(self, key: Callable[[str], str]):
        super().__init__()
        self._key = key

    def register(
        self, *names: str, replace: bool = False, **options: Any
    ) -> Callable[[_Convert], _Convert]:
        """Return a decorator that registers a converter; options as for :class:`Converter`.

        Raises
        ------
        UserError
            For an operator that has a converter, unless ``replace`` is set.
        """

        def enter(convert: _Convert) -> _Convert:
            for key in map(self._key, names):
                if key in self and not replace:
                    advice = "pass replace=True to replace the first"
                    raise UserError(f"a second converter of {key}", None, advice)
                self[key] = Converter(convert, **options)
            return convert

        return enter
