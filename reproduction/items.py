"""The items by name, in the order of the paper."""

from __future__ import annotations

from reproduction.spec import Spec
from reproduction.specs import fig1, fig2, fig3, fig4, fig5, figS1, table1, tableS2, theorems
from rtgp.errors import SettingError

ITEMS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        fig1.SPEC,
        fig2.SPEC,
        fig3.SPEC,
        fig4.SPEC,
        fig5.SPEC,
        table1.SPEC,
        tableS2.SPEC,
        figS1.SPEC,
        theorems.SPEC,
    )
}
_ALSO = {"figS2": "fig4", "figS3": "fig5", "fig6": "table1", "tableS1": "table1"}


def item(name: str) -> Spec:
    """The item of this name, or the one whose second name it is (figS2 belongs to fig4)."""
    known = {key.lower(): key for key in (*ITEMS, *_ALSO)}
    key = known.get(name.lower())
    if key is None:
        raise SettingError(f"The item must be one of {', '.join((*ITEMS, *_ALSO))}, or 'all'. Got {name!r} instead.")
    return ITEMS[_ALSO.get(key, key)]
