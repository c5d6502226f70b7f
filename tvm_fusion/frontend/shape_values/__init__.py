"""Evaluate small integer tensors over symbolic extents, whatever operators exporters write.

A shape that a model computes (``Shape``, ``Cast``, ``Slice``, ``Concat``, ``Reshape``) is known at
compile time as expressions over the symbolic dimensions. :mod:`.arrays` has the tensors,
:mod:`.facts` what the ranges of dimensions prove, :mod:`.elements` the arithmetic of one element,
:mod:`.operators` ONNX's operators over tensors of them.
"""

from .arrays import SymbolicArray, array_of
from .facts import Facts
from .operators import evaluate

__all__ = ["Facts", "SymbolicArray", "array_of", "evaluate"]
