"""Legalizations of our own, where stock's are numerically wrong or fuse badly."""

from ..expand import Legalization
from . import extrema, norms
from .adaptive_pool import adaptive_avg_pool
from .elementwise import ELEMENTWISE
from .extrema import EXTREMA, from_infinity
from .integer_arithmetic import INTEGERS, MEAN, mean
from .rank_sort import SORTS, rank_sort
from .scan import NAME as CUMSUM
from .scan import cumsum
from .scatter import NAME as SCATTER
from .scatter import scatter_nd
from .sorting import BUCKETIZE, bucketize

LEGALIZATIONS: dict[str, Legalization] = {
    **norms.LEGALIZATIONS,
    **extrema.LEGALIZATIONS,
    **ELEMENTWISE,
    **INTEGERS,  # floating point ones by REMAINDERS
    **{f"relax.nn.adaptive_avg_pool{n}d": adaptive_avg_pool for n in (1, 2, 3)},
    BUCKETIZE: bucketize,
    CUMSUM: cumsum,
    MEAN: mean,
    **dict.fromkeys(SORTS, rank_sort),
    SCATTER: scatter_nd,
}

__all__ = ["EXTREMA", "LEGALIZATIONS", "from_infinity"]
