"""Silence the warnings and prints of TVM's importers."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator

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
