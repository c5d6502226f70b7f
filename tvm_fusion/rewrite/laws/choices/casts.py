"""Conversions between dtypes. One that loses digits is never left out."""

import ml_dtypes
import numpy as np

from ....core.constants.numpy_types import numpy_dtype
from ....core.contract.template import Refusal
from ...egraph.law import Law, Match
from ...egraph.pattern import function, tensors

(a,) = tensors("a")
cast, cast_again = function("relax.astype", "to"), function("relax.astype", "again")


class CastToItself(Law):
    """astype(a, to) = a."""

    name = "cast_to_itself"
    before = cast(a)
    after = a  # the engine refuses a result of another dtype


class CastTwice(Law):
    """astype(astype(a, to), again) = astype(a, again)."""

    name = "cast_twice"
    before = cast_again(cast(a))
    after = cast_again(a)

    def check(self, match: Match) -> Refusal | None:
        """Refuse a first conversion that may change the number."""
        source, target = str(match.type("a").dtype), str(match.head("to").call.attrs.dtype)  # type: ignore[union-attr]
        if widens(source, target):
            return None
        return Refusal("narrowing", f"Numbers of {source} are rounded to {target}.")


def widens(source: str, target: str) -> bool:
    """Whether every number of a dtype is one of another dtype, too."""
    if source == target or source == "bool":
        return True
    a, b = numpy_dtype(source), numpy_dtype(target)
    if target == "bool":
        return False
    if _is_float(a):
        if not _is_float(b):
            return False
        old, new = ml_dtypes.finfo(a), ml_dtypes.finfo(b)
        is_wide = int(new.maxexp) >= int(old.maxexp) and int(new.minexp) <= int(old.minexp)
        return is_wide and int(new.nmant) >= int(old.nmant)
    bits = a.itemsize * 8 - (a.kind == "i")
    if _is_float(b):
        info = ml_dtypes.finfo(b)
        return bits <= int(info.nmant) + 1 and bits < int(info.maxexp)
    old_range, new_range = np.iinfo(a), np.iinfo(b)
    return bool(new_range.min <= old_range.min and old_range.max <= new_range.max)


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind in "fV"


LAWS: tuple[Law, ...] = (CastToItself(), CastTwice())
