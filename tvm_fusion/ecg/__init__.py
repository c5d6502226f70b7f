"""The extended computational graph: operators with mapping types, FLOPs and bytes, from TensorIR.

* ``legalization/``: operators become TensorIR; ``record`` keeps what they were.
* ``mapping_types/``: how outputs depend on inputs, read from the index relation.
* ``work``, ``operation_count``: FLOPs, bytes; ``closed_form``: constants that indices compute;
  ``properties``: algebraic ones, by an operator's name.
* ``operator``, ``read_dataflow``, ``graph``: nodes and edges, a block's operators, the graph;
  ``layers``: which layers of it are equal.
"""
