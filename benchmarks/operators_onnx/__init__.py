"""Every test case of the onnx package's backend suite, compiled, run and compared."""
