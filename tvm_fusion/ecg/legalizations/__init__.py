"""Legalizations of our own, where stock's are numerically wrong or fuse badly."""

from __future__ import annotations

from . import norms
from .log_add_exp import log_add_exp

LEGALIZATIONS: dict[str, norms.Legalization] = {
    **norms.LEGALIZATIONS,
    "relax.log_add_exp": log_add_exp,
}

__all__ = ["LEGALIZATIONS"]
