"""How many launches a scheduled PrimFunc is, told from its structure."""

from __future__ import annotations

from tvm import s_tir, tirx


def launches(func: tirx.PrimFunc) -> int:
    """Count outermost loops: what runs on a GPU as one grid, on a CPU as one loop nest."""
    return max(1, _count(func.body))


def _count(stmt: tirx.Stmt) -> int:
    if isinstance(stmt, tirx.SeqStmt):
        return sum(_count(part) for part in stmt.seq)
    if isinstance(stmt, s_tir.SBlockRealize):
        return _count(stmt.block.body)
    if isinstance(stmt, tirx.AttrStmt):
        return _count(stmt.body)
    return 1 if isinstance(stmt, tirx.For) else 0
