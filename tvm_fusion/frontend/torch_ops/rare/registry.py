"""Converters of the families here, entered when their module is imported."""

from ...registry import Registry
from ..registry import with_overload

#: Of real tensors, and of complex ones (:mod:`..complex_pairs`).
REAL, COMPLEX = Registry(with_overload), Registry(with_overload)
