"""Mutate protobuf messages field by field, and files byte by byte."""

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

INTEGERS = (0, 1, -1, 2, 3, 7, 63, 64, 1000, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
FLOATS = (0.0, -1.0, 1e-30, 1e30, float("inf"), float("nan"))
TEXTS = ("", "x", "../x", "/etc/hostname", "a b", "\n", "{}", "%s", "\u00fc", "n" * 5000, "\0")
_WHOLE = {FieldDescriptor.CPPTYPE_INT32: 32, FieldDescriptor.CPPTYPE_INT64: 64}


def mutated(message: Message, others: Sequence[Message], generator: random.Random) -> Message:
    """Copy a message and change one to four of its fields, at any depth.

    Parameters
    ----------
    message
        Stays as it is.
    others
        Of the same type: parts of them may take the place of the message's own.
    generator
        What to draw from.
    """
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(generator.choice((1, 1, 1, 2, 2, 3, 4))):
        _mutate_once(copy, others, generator)
    return copy


def damaged(data: bytes, generator: random.Random) -> bytes:
    """Cut off, flip, drop, repeat or insert bytes."""
    if not data:
        return generator.randbytes(4)
    start = generator.randrange(len(data))
    end = min(len(data), start + generator.choice((1, 2, 8, 64, 4096)))
    return generator.choice(
        (
            data[:start],
            data[:start] + bytes([data[start] ^ 1 << generator.randrange(8)]) + data[start + 1 :],
            data[:start] + data[end:],
            data[:end] + data[start:],
            data[:start] + generator.randbytes(end - start) + data[end:],
            data[:start] + bytes([255] * 10) + data[start:],
        )
    )


def messages(message: Message) -> list[Message]:
    """List a message and all messages in it."""
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if _is_repeated(field) else [value]:
                found += messages(part)
    return found


def _mutate_once(message: Message, others: Sequence[Message], generator: random.Random) -> None:
    place = generator.choice(messages(message))
    fields = place.DESCRIPTOR.fields
    present = [field for field, _ in place.ListFields()]
    field = generator.choice(present if present and generator.random() < 0.85 else fields)
    if generator.random() < 0.1:
        place.ClearField(field.name)
    elif _is_repeated(field):
        _mutate_list(place, field, others, generator)
    elif field.message_type is not None:
        _replace(getattr(place, field.name), others, generator)
    else:
        _set(place, field, generator)


def _mutate_list(
    place: Message, field: FieldDescriptor, others: Sequence[Message], generator: random.Random
) -> None:
    values = getattr(place, field.name)
    action = generator.random()
    if values and action < 0.3:
        del values[generator.randrange(len(values))]
    elif field.message_type is not None:
        if len(values) > 1 and action < 0.5:  # another order
            one, other = generator.sample(range(len(values)), 2)
            kept = type(values[0])()
            kept.CopyFrom(values[one])
            values[one].CopyFrom(values[other])
            values[other].CopyFrom(kept)
        elif values and action < 0.7:
            values.add().CopyFrom(generator.choice(values))
        elif values and action < 0.9:
            _replace(generator.choice(values), others, generator)
        else:
            _replace(values.add(), others, generator)
    elif values and action < 0.8:
        values[generator.randrange(len(values))] = _value(field, list(values), generator)
    else:
        values.append(_value(field, list(values), generator))


def _replace(part: Message, others: Sequence[Message], generator: random.Random) -> None:
    """Put another message of the same type in the place of one."""
    whole = generator.choice(others) if others else part
    same = [m for m in messages(whole) if m.DESCRIPTOR is part.DESCRIPTOR and m is not part]
    if same:
        part.CopyFrom(generator.choice(same))
    else:
        part.Clear()


def _set(place: Message, field: FieldDescriptor, generator: random.Random) -> None:
    setattr(place, field.name, _value(field, [getattr(place, field.name)], generator))


def _value(field: FieldDescriptor, known: list[Any], generator: random.Random) -> Any:
    kind = field.cpp_type
    old = generator.choice(known) if known else None
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return generator.choice([value.number for value in field.enum_type.values])
    if kind in _WHOLE:
        near = [old - 1, old + 1, old * 2, -old] if isinstance(old, int) else []
        value = generator.choice((*INTEGERS, *near))
        return max(-(2 ** (_WHOLE[kind] - 1)), min(2 ** (_WHOLE[kind] - 1) - 1, value))
    if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
        return abs(generator.choice(INTEGERS)) & 0xFFFFFFFF
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return generator.choice(FLOATS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return generator.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return damaged(old if isinstance(old, bytes) else b"", generator)
    return generator.choice((*TEXTS, *(x for x in known if isinstance(x, str))))


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)
