"""Workarounds in TVM's IR.

* ``structural``: visits and maps; ``buffer``: buffers that TVMScript reads back; ``simplifier``:
  floats hidden from integer rules; ``bf16``: dot products of AVX512-BF16.
* ``reshape``, ``symbolic``: shapes that TVM does not recognise; ``target``, ``pass_context``: what
  functions and passes run under.
"""
