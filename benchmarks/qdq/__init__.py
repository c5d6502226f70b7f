"""Networks quantized to 8 bits (QDQ), beside ONNX Runtime and OpenVINO."""
