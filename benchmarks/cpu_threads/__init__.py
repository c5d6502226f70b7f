"""Models of the zoo on a CPU with one to sixteen threads, beside ONNX Runtime and OpenVINO."""
