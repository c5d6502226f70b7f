"""What norms as factors of rows save: the model that decides about them.

    saved   the norm's launch, and its pass over x, which it reads and writes
    paid    by each product behind it: statistics of rows, which every thread reads and adds up for
            each tile of results, and the factors of each result

Fitted on one H100 to a product, a layer norm and a product, of 64 to 8,192 rows of 128 to 2,048
elements (float16), 18 shapes: the model is right about all but one that gain or lose 0.3 us. The
one, 512x768 and 3,072 columns behind it, loses 0.3 us of 13.1; 1024x640 and 1,920 gain 1.4 of 13.7,
4096x768 and 3,072 lose 4.4 of 52.8 (benchmarks/gpu/FUSED_GEMMS.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from .operators import WIDTH

NORM, BYTES_PER_US = 1.4, 5.0e6  # of a norm's kernel; bytes of a half type come from the cache
TILE = 128 * 128  # results of which a multiprocessor reads the statistics of rows once
STATISTIC = 0.08  # us of each tile of results, for each tile of statistics of a row
RESULTS_PER_US = 5.0e4  # of a multiprocessor
HALF_BYTES = 2


def gain_us(rows: int, columns: int, widths: Iterable[int], multiprocessors: int) -> float:
    """Estimate what statistics beside the product before a norm save; negative: cost.

    Parameters
    ----------
    rows, columns : int
        Of what is normalized.
    widths : iterable of int
        Columns of each product behind the norm.
    multiprocessors : int
        Of the device.

    Returns
    -------
    float
        Microseconds.
    """
    saved = NORM + 2 * HALF_BYTES * rows * columns / BYTES_PER_US
    for width in widths:
        results = rows * width / multiprocessors
        saved -= STATISTIC * columns / WIDTH * max(1.0, results / TILE)
        saved -= results / RESULTS_PER_US
    return saved
