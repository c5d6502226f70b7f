"""Quantized networks on bytes.

``products``, ``convolutions`` and ``operands`` in int8 and uint8 between quantization and
dequantization, ``widened_convolutions`` where bytes do not fit. Where a user permits it,
``rounded_activations`` rounds to int8 what multiplies weights in blocks.
"""
