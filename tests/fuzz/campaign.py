"""campaign.py [TARGET=INPUTS ...]: fuzz up to so many inputs of each target, going on from the counts in campaign.csv.

Every input follows from the name of its target and its number. They are tried in a process of their own, whose memory
is limited: one that dies, hangs or raises what is not documented is counted, told of in a file of its number, and
passed over.
"""

from __future__ import annotations

import csv
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

RESULTS = HERE / "campaign.csv"
COLUMNS = ("target", "inputs", "read", "refused", "undocumented", "memory", "crashed", "hung", "peak_mib")
INPUTS = {"csv": 25_000, "csv.gz": 15_000, "npz": 20_000, "parquet": 25_000, "model": 12_000, "checkpoint": 8_000}
HEADROOM = 2 * 2**30  # bytes of address space beyond what the libraries take
LOADING, PATIENCE = 600.0, 60.0  # seconds until the first input, and for each
BATCH = 2500
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class", "socket")


def worker(target: str, begin: int, end: int, folder: Path) -> None:
    """In the child: one line to the standard output for each input, before it ("?") and after it."""
    import torch

    from fuzz.targets import TARGETS, try_one
    from rtgp.errors import OutOfMemoryError

    torch.set_num_threads(1)
    assert target in TARGETS
    for case in range(3):  # what is loaded and made once, such as whole files to begin with
        _outcome(lambda case=case: try_one(target, -1 - case, folder), OutOfMemoryError)
    ours, before = [False], _memory()
    sys.addaudithook(lambda event, _: _forbid(event, ours[0]))
    limit = _address_space() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for case in range(begin, end):
        print(f"? {case}", flush=True)  # noqa: T201
        ours[0] = True
        found = _outcome(lambda case=case: try_one(target, case, folder), OutOfMemoryError)
        ours[0] = False
        print(f"! {found} {_memory() - before}", flush=True)  # noqa: T201


def _outcome(run, out_of_memory: type[Exception]) -> str:
    try:
        return run()
    except (out_of_memory, MemoryError):
        return "memory"
    except BaseException:
        traceback.print_exc()
        return "undocumented"


def _forbid(event: str, ours: bool) -> None:
    if ours and event.startswith(_FORBIDDEN):
        raise SystemExit(f"a hostile file led to {event}")


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _memory() -> int:
    """MiB of the most memory that was in use."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def run_batch(target: str, begin: int, end: int, keep: Path) -> tuple[Counter[str], int]:
    """The outcomes of the inputs from `begin` to `end`, and the most memory they took, in MiB."""
    counts: Counter[str] = Counter()
    peak = 0
    while begin < end:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
            command = [sys.executable, __file__, "--worker", target, str(begin), str(end), folder]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as child:
                lines = _Watched(child)
                for line in lines:
                    word, *rest = line.split()
                    if word == "!":
                        counts[rest[0]] += 1
                        peak = max(peak, int(rest[1]))
                        begin += 1
                        if rest[0] in ("undocumented", "memory"):
                            _keep(keep, target, begin - 1, rest[0], errors)
            if begin < end:  # it ended in the middle of one
                what = "hung" if lines.hung else "crashed"
                counts[what] += 1
                _keep(keep, target, begin, what, errors)
                begin += 1
    return counts, peak


class _Watched:
    """The lines of a child; it is killed when it says nothing for too long."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child, self.hung = child, False

    def __iter__(self):
        assert self.child.stdout is not None
        signal.signal(signal.SIGALRM, self._end)
        patience = LOADING
        while True:
            signal.alarm(int(patience))
            line = self.child.stdout.readline()
            signal.alarm(0)
            if not line:
                self.child.wait()
                return
            patience = PATIENCE
            yield line

    def _end(self, *_: object) -> None:
        self.hung = True
        self.child.kill()


def _keep(keep: Path, target: str, case: int, what: str, errors) -> None:
    """What the child said before; the input itself follows from its number."""
    keep.mkdir(parents=True, exist_ok=True)
    errors.seek(0)
    (keep / f"{target}-{case}-{what}.txt").write_text(errors.read()[-4000:])


def counted() -> dict[str, dict[str, int]]:
    """The rows of campaign.csv by target."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="") as file:
        return {row.pop("target"): {key: int(value) for key, value in row.items()} for row in csv.DictReader(file)}


def main(wanted: dict[str, int], keep: Path) -> int:
    rows = counted()
    for target, inputs in wanted.items():
        row = rows.setdefault(target, dict.fromkeys(COLUMNS[1:], 0))
        while row["inputs"] < inputs:
            began, begin = time.monotonic(), row["inputs"]
            end = min(begin + BATCH, inputs)
            counts, peak = run_batch(target, begin, end, keep)
            for name, count in counts.items():
                row[name] += count
            row["inputs"], row["peak_mib"] = end, max(row["peak_mib"], peak)
            _write(rows)
            each = 1e3 * (time.monotonic() - began) / (end - begin)
            print(f"{target}: {row} ({each:.1f} ms each)", flush=True)  # noqa: T201
    return sum(row[name] for row in rows.values() for name in ("undocumented", "memory", "crashed", "hung"))


def _write(rows: dict[str, dict[str, int]]) -> None:
    part = RESULTS.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for target, row in rows.items():
            writer.writerow({"target": target, **row})
    part.replace(RESULTS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    else:
        asked = dict(word.split("=") for word in sys.argv[1:])
        failures = main({k: int(v) for k, v in asked.items()} or INPUTS, HERE / "found")
        sys.exit(1 if failures else 0)
