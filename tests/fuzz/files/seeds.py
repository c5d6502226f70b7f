"""Small ONNX models to start from."""

import importlib

import onnx
import tiny_models

LARGEST = 20_000  # bytes


def seeds() -> list[onnx.ModelProto]:
    """Collect the models of ONNX's own node tests, as far as they are small."""
    importlib.import_module("onnx.backend.test.case.node")
    from onnx.backend.test.case.node import collect_testcases

    models = [tiny_models.dense()]
    models += [case.model for case in collect_testcases(None) if case.model is not None]
    return [model for model in models if model.ByteSize() <= LARGEST]
