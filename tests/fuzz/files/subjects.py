"""What reads the files."""

import tempfile
from pathlib import Path


def compile_model(case: bytes) -> None:
    """Import an ONNX file; compile it and write the artifact if the case's first byte says so."""
    import tvm_fusion
    from tvm_fusion.frontend import import_model

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(case[1:])
        if case[0]:
            tvm_fusion.compile(path).export(Path(folder, "artifact"))
        else:
            import_model(path)
