"""What shares a kernel, and every decision about it with its reason.

* ``fuse``: the pass; ``planning/``: merges, partition, plan; ``apply``: its groups in the IR.
* ``claims``: what templates answer; ``refusals``: their sentences; ``reshapes``: which need no
  kernel.
* ``cost``: the roofline; ``features``, ``fitted``: coefficients of measured devices; ``estimate``:
  of a whole function; ``describe``: for the manifest.
* ``database/``: measured alternatives and configurations; ``profile``: the planner's questions.
"""
