"""Weights of 4 and 8 bits, converted inside of the kernel of their product.

    q in memory -> registers -> (q - zero point) * scale, in the product's type

``float32``  in float32, a number at a time; factors that a tile shares multiply its sum (GEMV)
``f16x2``    by one mask for two numbers, with a bias that the sums are corrected by (skinny GEMM)
``chunk``    eight numbers by pairs, exactly as the graph rounds, on their way to shared memory
             (tiles)
"""
