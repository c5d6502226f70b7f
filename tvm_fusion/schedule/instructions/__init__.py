"""Matrix instructions of all processors, as rows of one table.

An instruction multiplies small matrices, ``D[m, n] = A[m, k] * B[k, n] + C[m, n]``, whose elements
lie in the registers of the lanes that execute it together: a warp or a warpgroup of NVIDIA, a wave
of AMD, or the one thread of a CPU. What differs between processors is data here: the shape, the
types, and for A, B and C the *layout*, which element each register of each lane holds; and how the
instruction is written for the target's compiler.

* :mod:`.layout`: a layout, and the places of a matrix in it.
* :mod:`.instruction`: a row.
* :mod:`.nvidia`, :mod:`.amd`, :mod:`.cpu`: the rows of each, from the manuals that they name, and
  its emitter.
* :mod:`.tiles`: the tile registers of AMX, which its rows multiply.
* :mod:`.lanes`: moves of values between the lanes of an AMD wave, rows of their own.
* :mod:`.table`: all rows, and how to find one for a device and types.

A kernel finds its row once, and asks it: so a lane of a warp stores its part of C::

    row = find(device, "mma.sync", "float16", "float16")
    for register in range(row.c.per_lane):
        C[row.c.place(lane, register)] = acc[register]

To add an instruction: a row in its vendor's file, in :mod:`tvm_fusion.device` which processors have
it, and in the tests what its manual says of the registers.
"""
