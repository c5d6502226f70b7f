"""Why no template takes a group: what each of them says, the nearest first."""

from collections.abc import Container, Mapping

from ..core.contract.template import Refusal

_FALLBACK = "one_operator_only"


class RefusedByAll(Refusal):
    """Why no template takes a group.

    Parameters
    ----------
    by_template
        By the template's name, in the order of asking.
    """

    def __init__(self, by_template: Mapping[str, Refusal]) -> None:
        self._far = {n: r for n, r in by_template.items() if r.code == "not_mine"}
        near = {n: r for n, r in by_template.items() if r.code not in ("not_mine", _FALLBACK)}
        code = next(iter(near.values())).code if near else "no_template"
        super().__init__(code, _sentences(near or self._far))

    def nearest(self, templates: Container[str]) -> Refusal:
        """Tell the reasons of the templates that came nearest.

        Those are the ones that take groups of this kind but for something; if there is none, the
        given ones, which make kernels of the parts that the group was to be made of.
        """
        ours = {n: r for n, r in self._far.items() if n in templates}
        return Refusal(self.code, _sentences(ours)) if self.code == "no_template" and ours else self


def _sentences(refusals: Mapping[str, Refusal]) -> str:
    """Join what templates say, each sentence once."""
    names: dict[str, list[str]] = {}
    for name, refusal in refusals.items():
        names.setdefault(refusal.sentence, []).append(name)
    return " ".join(f"{', '.join(by)}: {sentence}" for sentence, by in names.items())
