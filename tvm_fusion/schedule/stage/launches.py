"""Launches of a scheduled PrimFunc, counted from its structure."""

from tvm import s_tir, tirx

from ...core.tir.loops import ONE_OF, find


def launches(func: tirx.PrimFunc) -> int:
    """Count outermost loops: what runs on a GPU as one grid, on a CPU as one loop nest."""
    return max(1, _count(func.body))


def alternatives(func: tirx.PrimFunc) -> list[tirx.PrimFunc]:
    """Split a function with alternatives into one function for each of them."""
    found = [loop for loop in find(func.body, tirx.For) if is_choice(loop)]
    return [func.with_body(loop.body) for loop in found] or [func]


def is_choice(stmt: tirx.Stmt) -> bool:
    """Whether a statement is one of several alternatives."""
    return isinstance(stmt, tirx.For) and ONE_OF in stmt.annotations


def _count(stmt: tirx.Stmt) -> int:
    if isinstance(stmt, tirx.SeqStmt):
        choices = [_count(part.body) for part in stmt.seq if is_choice(part)]
        others = [_count(part) for part in stmt.seq if not is_choice(part)]
        return sum(others) + max(choices, default=0)
    if isinstance(stmt, s_tir.SBlockRealize):
        return _count(stmt.block.body)
    if isinstance(stmt, tirx.AttrStmt):
        return _count(stmt.body)
    return 1 if isinstance(stmt, tirx.For) else 0
