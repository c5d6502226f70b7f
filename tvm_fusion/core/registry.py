"""Registries of named plug-ins: this package's own, and those that users register."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from ..errors import UserError


class _Named(Protocol):
    name: str


T = TypeVar("T", bound=_Named)


class Registry(Generic[T]):
    """Things of one kind that users registered in this process, under names of their own.

    Parameters
    ----------
    base
        The class of which they are instances.
    word
        What one is called in messages, such as ``template``.
    names
        Lists the names that this package has.
    """

    def __init__(self, base: type, word: str, names: Callable[[], Iterable[str]]) -> None:
        self._base, self._word, self._names = base, word, names
        self._added: list[T] = []

    @property
    def added(self) -> tuple[T, ...]:
        """What is registered now, the last one last."""
        return tuple(self._added)

    def register(self, thing: T) -> None:
        """Add one from now on, in this process and for every target.

        Parameters
        ----------
        thing
            An instance of the registry's class; its name is not that of another one.

        Raises
        ------
        UserError
            If it is no such instance, has no name, or the name is taken.
        """
        name = getattr(thing, "name", None)
        if not isinstance(thing, self._base) or not isinstance(name, str) or not name:
            raise UserError(
                f"{type(thing).__name__} cannot be registered",
                f"an instance of a subclass of {self._base.__name__} with a name",
                "set the attribute 'name' of the class, and register an instance of it",
            )
        if name in (*(x.name for x in self._added), *self._names()):
            found = f"there is a {self._word} {name!r} already"
            raise UserError(found, "another name", "rename it")
        self._added.append(thing)

    @contextlib.contextmanager
    def registered(self, thing: T) -> Iterator[T]:
        """Register one as :meth:`register` does, for the body of a ``with`` statement."""
        self.register(thing)
        try:
            yield thing
        finally:
            self._added.remove(thing)
