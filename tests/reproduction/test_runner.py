"""Rows, resuming, filters, verdicts and the page, on a spec that costs nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reproduction import Setting, conclude, item, publish, run_cells
from reproduction.rows import Results
from reproduction.runner import selected
from reproduction.spec import CellUnfinishedError, Deadline, key_of
from rtgp._provenance import COLUMNS
from rtgp.errors import ConvergenceError, SettingError

sys.path.insert(0, str(Path(__file__).parent))
from counting import Counting, Held, Misled, Unlucky, Weak


def run(spec, folder, **settings):
    run_cells(spec, Setting(**settings), folder)
    return conclude(spec, folder, settings.get("size", "full"))


class TestRows:
    def test_what_is_added_is_read(self, tmp_path):
        results = Results(tmp_path / "a" / "x.csv")
        cell = {"set": "pol", "split": 10, "rate": 0.05}
        results.add(cell, [{"value": 0.1234567, "words": "a, b"}, {"value": -3, "other": 1}], "cpu")
        first, second = results.read()
        assert first["cell"] == key_of(cell) == "set=pol split=10 rate=0.05"
        assert (first["set"], first["split"], first["rate"], first["value"]) == ("pol", 10, 0.05, 0.1234567)
        assert first["words"] == "a, b"
        assert "other" not in first
        assert second["other"] == 1
        assert all(first[name] != "" for name in COLUMNS)

    def test_only_the_rows_of_the_given_cells_in_their_order(self, tmp_path):
        results = Results(tmp_path / "x.csv")
        for k in range(3):
            results.add({"k": k}, [{"value": k}], "cpu")
        assert [row["value"] for row in results.read([{"k": 2}, {"k": 0}])] == [2, 0]


class TestResume:
    def test_cells_with_rows_are_not_run_again(self, tmp_path):
        told = []
        run(Counting(told), tmp_path, size="quick")
        outcome = run(Counting(told), tmp_path)
        assert told == list(range(8))
        assert outcome.verdict.status == "reproduced"
        assert len(outcome.rows) == 16

    def test_a_failure_loses_one_cell(self, tmp_path):
        class Failing(Counting):
            def run(self, cell, setting):
                if cell["k"] == 4:
                    raise KeyboardInterrupt
                return super().run(cell, setting)

        with pytest.raises(KeyboardInterrupt):
            run(Failing(), tmp_path)
        outcome = conclude(Counting(), tmp_path, "full")
        assert outcome.verdict.status == "incomplete"
        assert "4 of 8 cells" in outcome.verdict.words
        told = []
        assert run(Counting(told), tmp_path).verdict.status == "reproduced"
        assert told == [4, 5, 6, 7]

    def test_the_time_is_up(self, tmp_path):
        class Slow(Counting):
            def run(self, cell, setting):
                if cell["k"] == 2:
                    raise CellUnfinishedError("the time was up")
                return super().run(cell, setting)

        assert run(Slow(), tmp_path).verdict.status == "incomplete"
        assert run(Counting(), tmp_path / "other", time_is_up=lambda: True).rows == []

    @pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("error", [ConvergenceError("bad luck"), ValueError("bad luck")])
    def test_a_cell_that_fails_is_told_and_left_out(self, tmp_path, workers, error):
        told = []
        assert run_cells(Unlucky(error), Setting(), tmp_path, tell=told.append, workers=workers) == 1
        outcome = conclude(Counting(), tmp_path, "full")
        assert "7 of 8 cells" in outcome.verdict.words
        assert [words for words in told if "k=4" in words and f"{type(error).__name__}: bad luck" in words]

    @pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_an_error_of_the_whole_run_ends_it(self, tmp_path, workers):
        told = []
        with pytest.raises(SettingError, match="nowhere"):
            run_cells(Misled(), Setting(), tmp_path, tell=told.append, workers=workers)
        assert len([words for words in told if "nowhere" in words]) == 2
        assert conclude(Counting(), tmp_path, "full").rows == []

    @pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
    @pytest.mark.slow
    def test_the_same_failure_of_many_cells_ends_nothing_once_one_has_succeeded(self, tmp_path, workers):
        assert run_cells(Weak(), Setting(), tmp_path) == 7
        assert run_cells(Weak(), Setting(), tmp_path, workers=workers) == 7  # in an earlier run
        assert "1 of 8 cells" in conclude(Counting(), tmp_path, "full").verdict.words

    def test_a_failed_cell_leaves_nothing_in_memory(self, tmp_path):
        alive = []
        run_cells(Weak(), Setting(), tmp_path, tell=lambda words: alive.append(Held.alive))
        assert len(alive) == 8 + 7  # each cell when it begins, and what became of it
        assert max(alive) == 0

    def test_what_measures_time_is_run_in_turn(self, tmp_path):
        told = []
        spec = Counting(told)
        spec.alone = True
        run_cells(spec, Setting(), tmp_path, workers=2)
        assert told == list(range(8))  # in this process

    def test_the_time_is_up_for_several_workers(self, tmp_path):
        run_cells(Counting(), Setting(time_is_up=Deadline(0.0)), tmp_path, workers=2)
        assert conclude(Counting(), tmp_path, "full").rows == []

    def test_a_finished_cell_leaves_no_checkpoint(self, tmp_path):
        class Saving(Counting):
            def run(self, cell, setting):
                folder = setting.checkpoint(self.name, cell)
                folder.mkdir(parents=True)
                (folder / "state").write_text("half")
                return super().run(cell, setting)

        run(Saving(), tmp_path, size="quick", checkpoints=tmp_path / "checkpoints")
        assert list((tmp_path / "checkpoints").rglob("state")) == []

    @pytest.mark.slow
    def test_a_kill_leaves_whole_rows(self, tmp_path):
        """Killed while it runs, then gone on with: every cell once, no row twice, no row in half."""
        program = [sys.executable, str(Path(__file__).with_name("counting.py")), str(tmp_path)]
        root = str(Path(__file__).parents[2])  # where `reproduction` is
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        for _ in range(3):  # the third cell has begun: two are in the file
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        before = [row["k"] for row in Results(tmp_path / "results" / "counting.csv").read()]
        assert before[:4] == [0, 0, 1, 1]
        told = []
        outcome = run(Counting(told), tmp_path)
        assert [row["k"] for row in outcome.rows] == [k for k in range(8) for _ in range(2)]
        assert told == list(range(len(before) // 2, 8))


class TestVerdict:
    def test_a_failed_check_is_not_reproduced(self, tmp_path):
        outcome = run(Counting(right=False), tmp_path)
        assert outcome.verdict.status == "not reproduced"
        assert [check.name for check in outcome.verdict.failed] == ["squares"]

    def test_nothing_is_concluded_from_nothing(self, tmp_path):
        assert conclude(Counting(), tmp_path, "full").verdict.status == "incomplete"


class TestPage:
    def test_report_and_figures(self, tmp_path):
        outcome = run(Counting(), tmp_path)
        page = publish([outcome], tmp_path, "full", "rtgp reproduce counting").read_text(encoding="utf-8")
        assert "Counting: reproduced" in page
        assert "<svg" in page
        assert "rtgp reproduce counting" in page
        assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', page.replace("xlink:href", "href"))  # self-contained
        assert {path.name for path in (tmp_path / "figures").iterdir()} == {"counting.png", "counting.svg"}
        svg = (tmp_path / "figures" / "counting.svg").read_text(encoding="utf-8")
        assert "#010101" not in svg  # recoloured
        assert "#1a1d21" in svg


class TestItems:
    def test_names(self):
        assert item("FIGS2").name == "fig4"
        assert item("tableS1").name == "table1"
        with pytest.raises(SettingError, match="fig7"):
            item("fig7")

    def test_filters(self):
        cells = [{"set": s, "split": k} for s in ("pol", "bike") for k in (10, 20)]
        assert selected(cells, {"set": "bike", "split": "10,20"}) == cells[2:]
        assert selected(cells, {}) == cells
