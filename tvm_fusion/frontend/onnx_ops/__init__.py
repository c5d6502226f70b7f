"""Converters of ONNX operators that TVM's importer lacks or gets wrong, by what they compute."""
