"""What the tests of the pages stand on: blocks are found, outputs compared, in cases that must pass and must fail."""

from __future__ import annotations

import pytest

from docs.outputs import difference
from docs.pages import blocks

PAGE = """\
# Title

<!-- before:
x = 1
-->
```python
print(x)
```

```text
1
```

Words between.

```text
no output
```

<!-- not run: needs a GPU -->
```shell
rtgp fit a.csv \\
    --target b
pip install .
```
"""


def test_blocks_of_a_page() -> None:
    code, output, other, shell = blocks(PAGE)
    assert (code.language, code.text, code.before, code.line) == ("python", "print(x)\n", "x = 1", 7)
    assert (output.follows, other.follows) == (True, False)
    assert shell.not_run == "needs a GPU"
    assert not shell.runs
    assert [line.split() for line in shell.commands] == [["rtgp", "fit", "a.csv", "--target", "b"]]


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("rmse 0.1234", "rmse  0.1235"),
        ("-1,234.5 nats", "-1234.9 nats"),
        ("12 steps, ... s", "12 steps, 3.4 s"),
        ("1e-08", "1.005e-08"),
        ("a\n\nb", "a\nb\n"),
    ],
)
def test_outputs_that_agree(expected: str, printed: str) -> None:
    assert difference(expected, printed) == ""


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("rmse 0.1234", "rmse 0.1334"),
        ("rmse 0.12", "nll 0.12"),
        ("12 steps", "14 steps"),
        ("0", "0.5"),
        ("1.0", "-1.0"),
        ("a", "a\nb"),
        ("12 steps, ... s", "12 steps"),
        ("RRCG()", "RRCG(probes=2)"),
    ],
)
def test_outputs_that_do_not(expected: str, printed: str) -> None:
    assert difference(expected, printed)
