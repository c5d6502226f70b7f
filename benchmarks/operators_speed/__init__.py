"""Single ONNX operators at three sizes against ONNX Runtime, two threads each."""
