"""Text files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

from rtgp.storage import write_whole, writing


def write_text(path: Path, text: str) -> None:
    """Written beside `path` under another name, then renamed: what stood there stays until the new text is complete."""
    with writing(path.name, path.parent):
        write_whole(path, text.encode("utf-8"))
