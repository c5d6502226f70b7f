"""Winograd convolution on a CPU: ``y = A^T ((G w G^T) * (B^T d B)) A``.

``phases`` (V = B^T d B; A^T P A and the epilogue), ``transforms`` (U at compile time, and the
matrices), ``kernel`` (products of V and U in register tiles); ``choice`` asks whether it is
permitted and pays, ``config`` has the tiles.
"""
