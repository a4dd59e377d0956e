"""Fetch one file whose checksum is known; nothing half-written or altered is ever left under its name."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.request
from pathlib import Path
from typing import IO

from rtgp.errors import InputError

TIMEOUT = 60.0  # seconds without an answer
LARGEST = 2**30  # bytes; the largest of the named sets has 20 MiB
_CHUNK = 2**20


def download(url: str, sha256: str, path: Path) -> None:
    """Store `url` as `path` if its content has the checksum `sha256`; an InputError otherwise."""
    remedy = f"Fetch it by other means and store it as {path}, or name its folder by data_dir= or RTGP_DATA."
    part: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        part = Path(temporary)
        with os.fdopen(handle, "wb") as file, urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            _copy(answer, file, url, remedy)
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != sha256:
            raise InputError(f"{url}: the content has sha256 {digest}, expected {sha256}; it was discarded. {remedy}")
        part.replace(path)
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{url} could not be downloaded ({error}). {remedy}") from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def _copy(answer: IO[bytes], file: IO[bytes], url: str, remedy: str) -> None:
    left = LARGEST
    while chunk := answer.read(_CHUNK):
        left -= len(chunk)
        if left < 0:
            raise InputError(f"{url}: more than {LARGEST / 2**30:.0f} GiB came; it was discarded. {remedy}")
        file.write(chunk)
