"""Design spaces: enumerated, the default first, and as plain data.

:meth:`Template.configs` enumerates them, and a record keeps a configuration.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

from ...core.contract.template import Claim, Config, Refusal

Sizes = TypeVar("Sizes")


def plain(sizes: Any) -> dict[str, int | str]:
    """Write a dataclass of numbers and words as plain data."""
    return {
        name: value if isinstance(value, str) else int(value)
        for name, value in asdict(sizes).items()
    }


def varied(start: Any, **choices: Iterable[Any]) -> Iterator[Any]:
    """Combine choices of some fields of a configuration; the last field varies fastest."""
    for values in itertools.product(*choices.values()):
        yield replace(start, **dict(zip(choices, values, strict=True)))


def default_first(chosen: Sizes, designs: Iterable[Sizes]) -> Iterator[Sizes]:
    """Enumerate the default, then the other members of a design space, which has each once."""
    yield chosen
    yield from (sizes for sizes in designs if sizes != chosen)


def distinct(designs: Iterable[Sizes], plain: Callable[[Sizes], Config] = plain) -> Iterator[Sizes]:
    """Enumerate the members of a design space once each, by what they are as plain data."""
    found: set[tuple[object, ...]] = set()
    for sizes in designs:
        key = tuple(plain(sizes).items())
        if key not in found:
            found.add(key)
            yield sizes


def member(
    claim: Claim,
    config: Config,
    designs: Iterable[Sizes],
    plain: Callable[[Sizes], Config] = plain,
) -> Sizes | Refusal:
    """Find the member of a claim's design space that a configuration describes.

    Parameters
    ----------
    config
        Plain data, as ``plain`` writes members.
    """
    wanted = dict(config)
    for sizes in designs:
        if plain(sizes) == wanted:
            return sizes
    words = ", ".join(f"{name} {value}" for name, value in config.items())
    return Refusal(
        "no_such_config", f"{claim.template.name} has no configuration of {words} for this group."
    )


@dataclass(frozen=True)
class Kernels:
    """Which fields of several classes of configurations a tuner may vary."""

    # By class: what its kernel is called, and its fields of numbers and switches; of a part of a
    # configuration as ``part.field``, which plain data call ``field``.
    fields: Mapping[type, tuple[str, tuple[str, ...]]]

    def plain(self, config: Any) -> dict[str, int | str]:
        """Write a configuration with the keys of all classes; those of others are 0."""
        name, own = self.fields[type(config)]
        every = dict.fromkeys(_key(n) for _, names in self.fields.values() for n in names)
        held = {_key(n): int(attrgetter(n)(config) or 0) for n in own}
        values = {key: held.get(key, 0) for key in every}
        return {"kernel": name, **values}


def _key(field: str) -> str:
    """Name a field without the part of a configuration that it belongs to."""
    return field.rpartition(".")[-1]
