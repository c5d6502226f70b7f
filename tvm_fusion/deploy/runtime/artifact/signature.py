"""Signatures and ranges of dimensions in a manifest; see :mod:`.manifest` for the schema."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ....signature import DimRange, EqualExtents, Signature, TensorSpec


def signature_to_json(signature: Signature) -> dict[str, Any]:
    """Write a signature as the schema has it."""
    entry: dict[str, Any] = {
        k: [_spec_to_json(s) for s in getattr(signature, k)] for k in ("inputs", "outputs")
    }
    if signature.equal:
        entry["equal"] = [asdict(e) for e in signature.equal]
    return entry if signature.call is None else {**entry, "call": dict(signature.call)}


def _spec_to_json(spec: TensorSpec) -> dict[str, Any]:
    entry = asdict(spec)
    return entry if spec.storage else {k: v for k, v in entry.items() if k != "storage"}


def signature_from_json(entry: Mapping[str, Any]) -> Signature:
    """Read a signature back."""

    def specs(key: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(s["name"], tuple(s["shape"]), s["dtype"], s.get("storage", ""))
            for s in entry[key]
        )

    equal = tuple(EqualExtents(**pair) for pair in entry.get("equal", ()))
    return Signature(specs("inputs"), specs("outputs"), equal, entry.get("call"))


def dims_to_json(dims: Mapping[str, DimRange]) -> dict[str, dict[str, int]]:
    """Write the ranges of symbolic dimensions."""
    return {
        name: {"min": r.low, "max": r.high} | ({"step": r.step} if r.step > 1 else {})
        for name, r in dims.items()
    }


def dims_from_json(entry: Mapping[str, Any]) -> dict[str, DimRange]:
    """Read the ranges of symbolic dimensions."""
    return {name: DimRange(r["min"], r["max"], r.get("step", 1)) for name, r in entry.items()}
