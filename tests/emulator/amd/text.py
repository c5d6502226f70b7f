"""Instructions from text: what ``llvm-objdump -d`` prints, or the assembly of a compiler.

A line is a mnemonic, operands separated by commas, and modifiers::

    v_fma_f32 v4, -v1, |v2|, s3 clamp          // 000000001F40: D1CB8204 040E0501

Behind ``//`` stands the instruction's address, by which branches find their targets; assembly has
labels instead.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


class Unsupported(Exception):
    """Text that this interpreter does not know."""


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    name
        The mnemonic without its encoding: ``v_add_f32``.
    encoding
        ``e32``, ``e64``, ``dpp``, ``sdwa``, ``e64_dpp`` or nothing.
    operands
        As they are written.
    modifiers
        ``{"offset": "16", "clamp": ""}``.
    text
        The whole.
    address
        In the code object; of assembly four times its number.
    """

    name: str
    encoding: str
    operands: tuple[str, ...]
    modifiers: dict[str, str] = field(compare=False)
    text: str
    address: int

    def number(self, modifier: str, default: int = 0) -> int:
        """Return a modifier's number."""
        value = self.modifiers.get(modifier)
        return default if value is None else int(value, 0)

    def numbers(self, modifier: str, default: Sequence[int]) -> list[int]:
        """Return a modifier's list: ``op_sel:[1,0]``."""
        value = self.modifiers.get(modifier)
        return list(default) if value is None else [int(x) for x in value.strip("[]").split(",")]


_ENCODING = re.compile(r"(.*?)_(e64_dpp|e32|e64|dpp8|dpp|sdwa)$")
_LABEL = re.compile(r"(?:[0-9a-f]{16} )?<?([\w.$@]+)>?:$")
_ADDRESS = re.compile(r"//\s*([0-9A-Fa-f]+):")
_DIRECTIVE = re.compile(r"[.@]")


def parse(text: str) -> tuple[list[Instruction], dict[str, int]]:
    """Read a function or a section.

    Returns
    -------
    list of Instruction
        In the order of the text.
    dict of str to int
        The numbers of the instructions behind labels.
    """
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        found = _ADDRESS.search(line)
        line = re.sub(r"/\*.*?\*/", "", line)
        line = re.split(r"//|;", line)[0].strip()
        label = _LABEL.match(line)
        if label:
            labels[label[1]] = len(instructions)
        elif line and not _DIRECTIVE.match(line):
            address = int(found[1], 16) if found else 4 * len(instructions)
            instructions.append(instruction(line, address))
    return instructions, labels


def instruction(line: str, address: int = 0) -> Instruction:
    """Read one line."""
    mnemonic, _, rest = line.partition(" ")
    found = _ENCODING.match(mnemonic)
    name, encoding = (found[1], found[2]) if found else (mnemonic, "")
    if " :: " in rest or name in ("s_waitcnt", "s_delay_alu"):
        return Instruction(name, encoding, (rest.strip(),), {}, line, address)
    operands = _split(rest)
    modifiers: dict[str, str] = {}
    if operands:
        operands[-1], *words = _words(operands[-1])
        for word in words:
            key, _, value = word.partition(":")
            modifiers[key] = value
        if not operands[-1] or name in ("s_endpgm", "s_barrier"):
            operands.pop()
    return Instruction(name, encoding, tuple(operands), modifiers, line, address)


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for character in text.strip():
        depth += (character in "[(") - (character in "])")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _words(text: str) -> list[str]:
    """Split at blanks outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == " " and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]
