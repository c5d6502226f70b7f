"""Atomic operations on device memory."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .group import Group
from .machine import waves_of
from .memory_steps import MEMORY, Address, counter_of, data_of, deliver, destination, place
from .step import Processor, Step, numbers
from .text import Instruction, Unsupported


def _float_add(a: Any, b: Any) -> Any:
    return np.asarray(a + b, a.dtype)


#: Type and function of what is there and the data.
OPERATIONS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "add": ("u4", np.add), "add_u32": ("u4", np.add), "sub": ("u4", np.subtract),
    "sub_u32": ("u4", np.subtract), "swap": ("u4", lambda a, b: b),
    "swap_b32": ("u4", lambda a, b: b), "smin": ("i4", np.minimum), "min_i32": ("i4", np.minimum),
    "smax": ("i4", np.maximum), "max_i32": ("i4", np.maximum), "umin": ("u4", np.minimum),
    "min_u32": ("u4", np.minimum), "umax": ("u4", np.maximum), "max_u32": ("u4", np.maximum),
    "and": ("u4", np.bitwise_and), "and_b32": ("u4", np.bitwise_and), "or": ("u4", np.bitwise_or),
    "or_b32": ("u4", np.bitwise_or), "xor": ("u4", np.bitwise_xor),
    "xor_b32": ("u4", np.bitwise_xor), "add_f32": ("f4", _float_add), "max_f32": ("f4", np.fmax),
    "min_f32": ("f4", np.fmin), "add_f64": ("f8", _float_add), "add_x2": ("u8", np.add),
    "add_u64": ("u8", np.add), "pk_add_f16": ("f2", _float_add), "cmpswap": ("u4", lambda a, b: b),
    "cmpswap_b32": ("u4", lambda a, b: b),
}  # fmt: skip


def combine(
    view: np.ndarray, at: np.ndarray, kind: str, function: Callable[[Any, Any], Any],
    data: np.ndarray, expected: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Apply an operation at places one lane after the other; returns what was there.

    Lanes that do not share a place go together.
    """
    before = np.zeros(len(at), view.dtype)
    left = np.arange(len(at))
    while len(left):
        _, first = np.unique(at[left], return_index=True)
        now = left[np.sort(first)]
        old = view[at[now]]
        before[now] = old
        new = function(old.view(kind), data[now].view(kind))
        new = np.ascontiguousarray(new, kind).view(view.dtype)
        if expected is not None:
            new = np.where(old == expected[now], new, old)
        view[at[now]] = new
        left = np.setdiff1d(left, now, assume_unique=True)
    return before


def atomic_step(inst: Instruction, processor: Processor) -> Step | None:
    """Decode an atomic operation on device memory; None if the instruction is none."""
    matched = MEMORY.match(inst.name)
    if not matched or matched[2] != "atomic":
        return None
    space, _, rest = matched.groups()
    if rest not in OPERATIONS or space == "scratch":
        raise Unsupported(inst.name)
    kind, function = OPERATIONS[rest]
    returning = "glc" in inst.modifiers or "sc0" in inst.modifiers
    size = max(np.dtype(kind).itemsize, 4)
    compares = rest.startswith("cmpswap")
    texts = list(inst.operands)
    if space == "buffer":
        text, texts = texts[0], texts[1:]
        result = text
    else:
        result = texts.pop(0) if returning else ""
        text = texts.pop(1)
    data = data_of(inst, text, size * (2 if compares else 1), None)
    address = Address(inst, space, texts)
    held = destination(result, size) if returning else None
    counter = counter_of(processor, not returning)
    writes = numbers(held.numbers) if held else frozenset()

    def run(g: Group) -> None:
        machine = g.machine
        _, places, inside = address.resolve(g, size)
        values, undefined = data(g)
        if undefined is not None and undefined.any():
            raise g.mistake("its data are registers that nothing wrote")
        waves = waves_of(g)
        if inside is not None and not inside.all():
            raise g.mistake("it is an atomic operation behind the end of its buffer")
        access, before = None, np.zeros(len(places), f"u{size}")
        if len(places):
            offsets, shadows = place(g, places, size)
            shadow = machine.launch.shadow
            found = shadow.write(
                shadows, size, machine.stamps[waves], np.ones(len(places), bool), True
            )
            machine.race(found, "memory", True)
            expected = values[:, 1].astype("u4") if compares else None
            values = values[:, 0] if compares else values
            values = np.ascontiguousarray(values).view(f"u{size}").reshape(-1)
            view = machine.launch.regions.bytes.view(size)
            before = combine(view, offsets, kind, function, values, expected)
            access = (shadow, shadows, size, waves, "memory", True, True)
        if held is not None:
            words = before if size == 4 else before.view("u4").reshape(-1, size // 4)
            deliver(g, held, words, None, size, False, None)
        machine.waits.issue(g, counter, tuple(writes), inst.text, access)

    run.counter = counter
    return Step(inst, run, address.registers | frozenset(data.registers), writes)
