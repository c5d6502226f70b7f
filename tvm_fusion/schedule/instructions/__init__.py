"""Matrix instructions of all processors, as rows of one table.

An instruction multiplies small matrices, ``D[m, n] = A[m, k] * B[k, n] + C[m, n]``, whose elements
lie in the registers of the lanes that execute it together: a warp or a warpgroup of NVIDIA, a wave
of AMD, or the one thread of a CPU. What differs between processors is data here: the shape, the
types, and for A, B and C the *layout*, which element each register of each lane holds.

* :mod:`.layout`: a layout, and the places of a matrix in it.
* :mod:`.instruction`: a row.
* :mod:`.nvidia`, :mod:`.amd`, :mod:`.x86`: the rows of each, from the manuals that they name.
* :mod:`.table`: all of them, and how to find one.
"""
