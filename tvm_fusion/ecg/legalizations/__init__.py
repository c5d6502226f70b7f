"""Legalizations of our own, where stock's are numerically wrong or fuse badly."""

from .norms import LEGALIZATIONS

__all__ = ["LEGALIZATIONS"]
