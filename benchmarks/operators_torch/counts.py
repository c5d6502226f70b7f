"""Outcomes in a stored record, counted where there is no PyTorch."""

from collections import Counter
from collections.abc import Mapping

NAMES = ("float32", "int64", "bool", "float16")  # dtypes that samples are drawn in


def counts(record: Mapping[str, list[str]]) -> dict[str, Counter[str]]:
    """Count outcomes by dtype.

    Parameters
    ----------
    record
        By operator, a text for each dtype in their order.
    """
    totals = {dtype: Counter[str]() for dtype in NAMES}
    for texts in record.values():
        for dtype, text in zip(NAMES, texts, strict=True):
            for part in text.split("; ") if text else ():
                number, _, rest = part.partition(" ")
                totals[dtype][rest.partition(":")[0] or "right"] += int(number)
    return totals
