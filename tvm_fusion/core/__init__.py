"""What all stages share.

* ``contract/``: claims, proposals and emissions, by which planner and templates know each other.
* ``tir/``: expressions, loops, integer arithmetic and kernels of TensorIR.
* ``constants/``: operators on constants, element types, and which constant is which weight.
* ``names/``: the user's names of operators, through all passes.
* ``recurrent/``: LSTM, GRU and RNN: cells, buffers, and the reference loops.
* ``decisions``: verdicts with their reasons; ``registry``: plug-ins by name; ``flags``: options.
* ``untouched``: functions that no pass changes; ``recursion``: functions that are loops.
* ``shards``: parts of a tensor that workers hold; ``peer_memory``: memory that they write to.
* ``operand_axes``: axes of operands that become an axis of a result.
* ``once``: answers about equal groups; ``progress``: of long operations; ``current_target``: of
  the passes.
"""
