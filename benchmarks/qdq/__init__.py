"""Networks quantized to 8 bits (QDQ), against ONNX Runtime and OpenVINO."""
