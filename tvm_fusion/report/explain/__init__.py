"""Why a model's kernels are what they are: groups, edges not fused, counts against stock TVM."""

from .parts import Edge, Group, Member
from .result import Explanation
from .rewriting import Rewriting
from .run import Explained, explain, explained

__all__ = [
    "Edge",
    "Explained",
    "Explanation",
    "Group",
    "Member",
    "Rewriting",
    "explain",
    "explained",
]
