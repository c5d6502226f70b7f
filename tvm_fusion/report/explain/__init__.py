"""Why a model's kernels are what they are: groups, edges not fused, counts against stock TVM."""

from .result import Edge, Explanation, Group, Member
from .run import explain

__all__ = ["Edge", "Explanation", "Group", "Member", "explain"]
