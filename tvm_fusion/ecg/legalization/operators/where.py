"""A choice between two tensors by a boolean one.

TOPI casts the condition to int64 and compares it with zero. Written into one another, as masks of
masks are, such comparisons take TVM's simplifier ten times longer a level, minutes from seven on.
"""

from __future__ import annotations

from tvm import tirx

from .broadcast import elementwise

#: ``a if condition else b`` of every element, all three broadcast to one another.
where = elementwise("where", tirx.Select)
