"""PrimFuncs around a contraction on a CPU.

``prim_func``  the contraction before it is scheduled, over SBlocks
``packing``    what packs a constant at compile time
``padding``    padded and dilated operands
"""
