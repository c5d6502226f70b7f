"""frontend/onnx_model."""
