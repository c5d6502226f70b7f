"""Attention, however scales, masks and transposes are written.

``attention``  the pattern: two products around a softmax
``scores``     what stands between them: scales, masks, softmax and its guard
``mask``       masks before they are broadcast, comparisons of positions
``reading``    operands behind transposes, reshapes, casts and broadcasts
``indices``    einsum indices of a tensor's axes, followed through these
"""
