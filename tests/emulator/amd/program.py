"""A kernel's instructions, decoded."""

from dataclasses import dataclass

from . import lds_steps, memory_steps
from .atomics import atomic_step
from .control import control_step
from .group import Group
from .lane_steps import lane_step
from .matrix_steps import matrix_step
from .registers import registers
from .scalar import scalar_step
from .scalar_loads import scalar_load_step
from .step import Processor, Step
from .text import Instruction, Unsupported, parse
from .vector_steps import vector_step

#: Between writing a vector register and moving it by DPP.
_DPP_STATES = 2


@dataclass
class Program:
    """Decoded instructions.

    Attributes
    ----------
    steps
        In order.
    place
        Numbers of steps by address and by label.
    granules
        The smallest accesses, in bytes.
    """

    steps: list[Step]
    place: dict[int | str, int]
    granules: dict[str, int]


def decode(text: str, processor: Processor, base: int = 0) -> Program:
    """Decode a text.

    Raises
    ------
    Unsupported
        For the first instruction that is unknown.
    """
    instructions, labels = parse(text)
    place: dict[int | str, int] = {inst.address: i for i, inst in enumerate(instructions)}
    place.update(labels)
    steps = [_step(inst, processor, place, base) for inst in instructions]
    if processor.lanes == 64:
        _check_dpp(steps)

    def smallest(module: object) -> int:
        found = [module.granule(inst) for inst in instructions]
        return min((size for size in found if size), default=4)

    granules = {"global": smallest(memory_steps), "lds": smallest(lds_steps)}
    return Program(steps, place, granules)


def _check_dpp(steps: list[Step]) -> None:
    """Let DPP instructions fail that follow a write of the register that they move too closely.

    CDNA does not wait by itself: two other instructions or wait states have to lie between.
    """
    for at, step in enumerate(steps):
        if not step.inst.encoding.endswith("dpp"):
            continue
        held = registers(step.inst.operands[1].strip("-|"))
        states, before = 0, at - 1
        while held is not None and before >= 0 and states < _DPP_STATES:
            inst = steps[before].inst
            if inst.name.startswith("v_") and steps[before].writes & set(held.numbers):
                text = f"{inst.operands[0]} of another lane less than {_DPP_STATES} wait states"

                def fail(g: Group, text: str = text) -> None:
                    raise g.mistake(f"it reads {text} after it was written")

                step.run = fail
                break
            states += int(inst.operands[0], 0) + 1 if inst.name == "s_nop" else 1
            before -= 1


def _step(inst: Instruction, processor: Processor, place: dict[int | str, int], base: int) -> Step:
    step = (
        control_step(inst, place, base)
        or scalar_step(inst, processor)
        or vector_step(inst, processor)
        or scalar_load_step(inst)
        or memory_steps.memory_step(inst, processor)
        or atomic_step(inst, processor)
        or lds_steps.lds_step(inst, processor)
        or matrix_step(inst, processor)
        or lane_step(inst, processor)
    )
    if step is None:
        raise Unsupported(f"unknown instruction {inst.text!r} of {processor.arch}")
    return step
