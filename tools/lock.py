"""Write requirements-dev.lock: what pip resolves for `.[dev]` under constraints.txt, with the hash of each file.

    make lock

pip's own resolution is taken as it is (`pip install --dry-run --report`). It names one file for each distribution: the
one for the platform this runs on, which the lock says at its head.

torch is pinned but not in the lock. Its build depends on where it comes from (with CUDA from PyPI, for the CPU or for a
version of CUDA from PyTorch's own index), each with a hash of its own, so that one hash would be a claim about one
source. The same goes for the packages that only torch asks for with CUDA, which a build for the CPU does not have.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.lock"
BUILD = "setuptools"  # what pyproject.toml builds with
LEFT_OUT = re.compile(r"torch|triton|nvidia-.*|cuda-.*")


def main() -> None:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    command += ["-c", str(ROOT / "constraints.txt"), f"{ROOT}[dev]", BUILD]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    lines = []
    for item in report["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if name == "rtgp" or LEFT_OUT.fullmatch(name):
            continue
        hashes = item["download_info"]["archive_info"]["hashes"]
        lines.append(f"{name}=={item['metadata']['version']} \\\n    --hash=sha256:{hashes['sha256']}")
    where = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    head = (
        f"# Made by tools/lock.py for {platform.system()} {platform.machine()}, {where}: `make lock`. Not by hand.\n"
        "# torch is pinned in constraints.txt, not here: each of its builds has a hash of its own.\n"
    )
    LOCK.write_text(head + "\n".join(sorted(lines)) + "\n")


if __name__ == "__main__":
    main()
