"""The report in a real browser, where one is installed: nothing overflows, nothing fails, light and dark differ."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

from rtgp._report import Curve, Report, Run, Table, write_report
from waiting import PATIENCE

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium installed")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x = np.linspace(0, 1, 50)
    history = [{"step": s, "loss": 1.0 / (s + 1), "seconds": 0.1 * s, "noise": 0.1} for s in range(9)]
    table = Table([f"a long name of column {i}" for i in range(9)], [["1234.5678"] * 9] * 3)
    picture = Curve(x, np.sin(x), np.ones(50), x, x, "a", "b")
    report = Report("Title", "Summary", [Run("one", history)], table, picture, {"key": "v" * 300})
    return write_report(tmp_path_factory.mktemp("page") / "report.html", report)


def chromium(page: Path, profile: Path, *flags: str) -> str:
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout


def corner(screenshot: Path) -> int:
    """Brightness of the pixel at the top left of a PNG of 8-bit colours."""
    content = screenshot.read_bytes()
    channels = {2: 3, 6: 4}[content[25]]
    data, place = b"", 8
    while place < len(content):
        length, kind = struct.unpack(">I4s", content[place : place + 8])
        if kind == b"IDAT":
            data += content[place + 8 : place + 8 + length]
        place += 12 + length
    row = zlib.decompress(data)[1 : 1 + channels]  # the first pixel is stored as it is under every filter but Paeth's
    return sum(row[:3])


@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_scheme(page: Path, tmp_path: Path, scheme: int) -> None:
    shot = tmp_path / "shot.png"
    flags = [f"--screenshot={shot}", "--window-size=1200,900", f"--blink-settings=preferredColorScheme={scheme}"]
    chromium(page, tmp_path / "profile", *flags)
    assert (corner(shot) > 600) == bool(scheme)


def test_fits_a_phone(page: Path, tmp_path: Path) -> None:
    """The page in a frame of 390 px, measured by a script of the test's own page."""
    content = page.read_text(encoding="utf-8")
    content = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", content)
    (tmp_path / "report.html").write_text(content, encoding="utf-8")
    measure = (
        "<script>addEventListener('load', () => { const r = document.querySelector('iframe').contentDocument;"
        "document.title = r.documentElement.scrollWidth + ' ' + Math.min(...[...r.querySelectorAll('figure svg')]"
        ".map(s => s.getBoundingClientRect().width)); })</script>"
    )
    frame = tmp_path / "frame.html"
    frame.write_text(f'{measure}<iframe src="report.html" style="width:390px;height:800px;border:0"></iframe>')
    text = chromium(frame, tmp_path / "profile", "--dump-dom", "--allow-file-access-from-files")
    found = re.search(r"<title>(\d+) ([\d.]+)</title>", text)
    assert found, text[:500]
    assert int(found[1]) <= 390
    assert float(found[2]) > 250
