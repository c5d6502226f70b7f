"""Collect everything that keeps a model from being compiled, and report it in one error."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import UserError
from .symbolic import SymbolicDim, unbound_advice, unbound_sentence


@dataclass
class Findings:
    """What is wrong with a model."""

    opset: str = ""  # empty, or what is wrong with the version of ONNX's operator set
    # Unsupported operators with their domain, and how often each occurs.
    operators: Counter[str] = field(default_factory=Counter)
    # Where the first of each is, as far as that is known.
    places: Mapping[str, str] = field(default_factory=dict)
    # Inputs and outputs that are not tensors of a known rank.
    values: list[str] = field(default_factory=list)
    # Element types in which nothing computes, with the names of the values.
    dtypes: dict[str, list[str]] = field(default_factory=dict)
    unbound: Sequence[SymbolicDim] = ()  # dimensions about which the user said nothing
    # What to do instead of the unsupported operators.
    instead: str = "export the model without these operators"

    def raise_if_any(self, source: str) -> None:
        """Raise one :class:`UserError` that tells every finding."""
        found, advice = [], []
        if self.opset:
            found.append(self.opset)
            advice.append("export the model with a supported opset")
        if self.operators:
            listed = ", ".join(map(self._counted, sorted(self.operators)))
            found.append(f"unsupported operators {listed}")
            advice.append(self.instead)
        for dtype, names in sorted(self.dtypes.items()):
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            found.append(f"values of type {dtype} ({names[0]}{more})")
            if dtype == "string":
                advice.append("work with strings before the model, on the host")
                continue
            if dtype.startswith("complex"):
                advice.append("pass real and imaginary parts as two tensors, or as a last axis")
                continue
            advice.append(f"replace {dtype} by a type of at least 8 bits other than 8-bit floats")
        if self.values:
            found.append(", ".join(self.values))
            advice.append("give inputs and outputs as tensors of known rank")
        if self.unbound:
            found.append(unbound_sentence(self.unbound))
            advice.append(unbound_advice(self.unbound))
        if found:
            raise UserError(f"{source} has " + "; ".join(found), None, " and ".join(advice))

    def _counted(self, operator: str) -> str:
        count, place = self.operators[operator], self.places.get(operator)
        where = f" {'at' if count == 1 else 'first at'} {place}" if place else ""
        return f"{operator} ({count}x){where}"
