"""Tables for notebooks: well-formed, escaped, short."""

from __future__ import annotations

from xml.etree import ElementTree

from rtgp._markup import ends, pairs, table, text

HOSTILE = '<script>alert("x")</script> & more'


def test_whatever_a_name_holds_stays_text() -> None:
    for made in (table([HOSTILE, "b"], [[HOSTILE, 1]], HOSTILE, HOSTILE), pairs([(HOSTILE, HOSTILE)], HOSTILE)):
        tree = ElementTree.fromstring(made)
        assert not list(tree.iter("script"))
        assert sum(one.text == HOSTILE for one in tree.iter()) >= 3
    assert text("<b>") == "&lt;b&gt;"


def test_long_tables_are_cut_in_the_middle() -> None:
    rows = [[str(i), "x"] for i in range(40)]
    cut = ends(rows)
    assert [row[0] for row in cut] == ["0", "1", "2", "3", "4", "…", "35", "36", "37", "38", "39"]
    assert ends(rows[:11]) == rows[:11]
