"""Silence the warnings and prints of TVM's importers."""

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np


@contextlib.contextmanager
def quiet_importer() -> Iterator[None]:
    """Silence Python warnings, numpy's floating point warnings and the importers' own prints.

    Errors pass: an importer prints a failed operator and then raises the exception that says the
    same.
    """
    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def end_blocks(builder: Any) -> None:
    """Close what a failed import left open; a builder complains of it when it is destroyed."""
    with contextlib.suppress(Exception):
        while True:
            builder._end_block()
