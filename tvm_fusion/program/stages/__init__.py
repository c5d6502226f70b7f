"""How PrimFuncs become one program.

* ``parse``: a PrimFunc's loops as stages; ``bind``: over an operator's arguments; ``trivial``:
  stages that copy.
* ``reindex``, ``relayout``, ``align``: the same elements by other axes, until stages share them.
* ``compose``: the program.
"""
