from dataclasses import dataclass

import pytest

from tvm_fusion.cli import main
from tvm_fusion.report import progress


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """What a mistake is answered with: one line, no traceback, exit code 2."""
        assert self.code == 2
        assert self.err.startswith("tvm-fusion: ")
        assert self.err.endswith(".\n")
        assert self.err.count("\n") == 1
        assert self.out == ""
        return self.err


@pytest.fixture
def cli(capfd, monkeypatch):
    """Run the command line in this process; output of C++ is caught, too.

    No progress is shown, however long a busy machine takes.
    """
    monkeypatch.setattr(progress, "PATIENCE", 1e6)

    def run(*arguments):
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        return Result(code, *capfd.readouterr())

    return run
