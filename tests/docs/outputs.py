"""Whether a program printed what a page says it prints."""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w])")
TOLERANCE = 0.01  # relative; another machine's rounding moves the last digits of an optimum


def difference(expected: str, printed: str, tolerance: float = TOLERANCE) -> str:
    """ "" where they agree, else the first line that does not, in words.

    Words must be the same, but for white space; numbers may differ by `tolerance` of their size and one unit of their
    last digit; `...` stands for anything within a line.
    """
    wanted, came = (
        [" ".join(line.split()) for line in text.strip().splitlines() if line.strip()] for text in (expected, printed)
    )
    if len(wanted) != len(came):
        return f"expected {len(wanted)} lines, got {len(came)}:\n{printed}"
    for one, other in zip(wanted, came, strict=True):
        if not _same(one, other, tolerance):
            return f"expected {one!r}\n     got {other!r}"
    return ""


def _same(expected: str, printed: str, tolerance: float) -> bool:
    pattern, numbers, place = "", [], 0
    for piece in re.finditer(rf"\.\.\.|{_NUMBER.pattern}", expected):
        pattern += re.escape(expected[place : piece.start()])
        if piece[0] == "...":
            pattern += ".*?"
        else:
            numbers.append(piece[0])
            pattern += f"({_NUMBER.pattern})"
        place = piece.end()
    found = re.fullmatch(pattern + re.escape(expected[place:]), printed)
    return found is not None and all(map(lambda a, b: _close(a, b, tolerance), numbers, found.groups()))


def _close(expected: str, printed: str, tolerance: float) -> bool:
    a, b = float(expected.replace(",", "")), float(printed.replace(",", ""))
    mantissa = re.split("[eE]", expected)[0]
    decimals = len(mantissa.partition(".")[2])
    exponent = int(re.split("[eE]", expected)[1]) if re.search("[eE]", expected) else 0
    unit = 10.0 ** (exponent - decimals) if decimals or exponent else 0.0  # a count is a count
    if not decimals and not exponent:
        return math.isclose(a, b, rel_tol=tolerance)
    return abs(a - b) <= tolerance * abs(a) + 1.001 * unit
