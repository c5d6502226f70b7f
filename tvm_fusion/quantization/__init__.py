"""Post-training quantization to 8 bits, by ONNX Runtime's static quantizer.

``samples``       calibration data: folders and files of arrays
``quantize``      the quantizer with the form that the kernels here read
``layer_errors``  what quantization changes, layer by layer
"""

from .quantize import Quantized, quantize

__all__ = ["Quantized", "quantize"]
