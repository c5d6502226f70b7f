"""Winograd convolution on a CPU: ``y = A^T ((G w G^T) * (B^T d B)) A``.

``image`` (V = B^T d B), ``transforms`` (U at compile time, and the matrices), ``kernel``
(products of V and U in register tiles), ``results`` (A^T P A and the epilogue); ``choice`` asks
whether it is permitted and pays, ``config`` has the tiles.
"""
