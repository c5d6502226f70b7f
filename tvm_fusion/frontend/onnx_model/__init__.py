"""ONNX files before conversion.

``file`` and ``graph`` read them, ``order`` sorts their nodes, ``functions``, ``sequences``,
``constants``, ``types`` and ``rewrite`` bring them to what the converters of ``onnx_ops`` take.
"""
