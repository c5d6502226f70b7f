"""Single ONNX operators at three sizes beside ONNX Runtime, two threads each."""
