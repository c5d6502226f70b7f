"""A group of operators as one program of index arithmetic, which all templates read.

* ``stage``, ``program``, ``group``: a map or reduction; stages over common axes; of operators.
* ``stages/``: PrimFuncs become stages, aligned and composed; ``domain``: what indices can be.
* ``to_tir``: back to TensorIR; ``primitive``: a group that is fused already.
* ``layouts``, ``images``, ``variant``: other layouts of tensors, and the program that reads them.
* ``contractions``, ``lane_conditions``: sums of products; conditions on a vector's lanes.
"""
