"""Trained ONNX files of PyPI packages, with the ranges of sizes that their users need."""
