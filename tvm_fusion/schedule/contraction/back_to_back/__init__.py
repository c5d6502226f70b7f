"""Two GEMMs back to back on Hopper: the hidden rows between them reach no memory.

    H = round(epilogue(X * W1));  D = epilogue(H * W2)
    W1 and W2 stay in shared memory; rows of X go through a ring, 64 at a time
    consumer:  for chunk of H's columns:  sums = X * W1[chunk];  fragments of A = epilogue(sums);
               acc += fragments * W2[chunk]

``problem`` reads the two products, ``config`` and ``space`` hold the numbers and which pay,
``roles`` is the kernel, and turns sums into fragments of A, ``template`` claims.
"""
