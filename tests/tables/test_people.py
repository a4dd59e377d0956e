"""Eight people with eight tables: from `rtgp fit` to `rtgp predict` with no work by hand, as good as work by hand.

By hand means: the clean columns, scikit-learn's one-hot encoding and imputation with an indicator, and GPRegressor.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from typer.testing import CliRunner

from rtgp._cli import app
from rtgp._estimator.regressor import GPRegressor

TRAIN, TEST = 150, 100
ROWS = TRAIN + TEST
CLOSE = 0.02  # of R2


@dataclass
class Person:
    """clean: the columns as they are meant, gaps included. write: as their program writes the rows of a table."""

    clean: pd.DataFrame
    y: np.ndarray
    write: Callable[[Path, pd.DataFrame], None]
    ending: str = "csv"
    target: str = "price"
    arguments: tuple[str, ...] = ()
    says: tuple[str, ...] = ()  # what the fit must say
    noise: pd.DataFrame = field(default_factory=pd.DataFrame)  # columns that say nothing


def run(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    return result.output


def by_hand(person: Person) -> np.ndarray:
    frame = person.clean.copy()
    for name in frame.columns:
        if pd.api.types.is_datetime64_any_dtype(frame[name]):
            days = (frame[name] - pd.Timestamp("2000-01-01")) / pd.Timedelta(days=1)
            frame[name] = days
            period = 365.2425 if days.max() - days.min() > 400 else 1.0
            frame[f"{name} sin"], frame[f"{name} cos"] = (f(2 * np.pi * days / period) for f in (np.sin, np.cos))
    words = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    frame[words] = frame[words].astype(object).fillna("nothing")
    numbers = [name for name in frame.columns if name not in words]
    columns = ColumnTransformer(
        [("words", OneHotEncoder(handle_unknown="ignore", sparse_output=False), words),
         ("numbers", SimpleImputer(add_indicator=True), numbers)]
    )  # fmt: skip
    model = make_pipeline(columns, GPRegressor(random_state=0))
    return model.fit(frame[:TRAIN], person.y[:TRAIN]).predict(frame[TRAIN:])


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def gaps(values: np.ndarray, share: float, seed: int) -> pd.Series:
    series = pd.Series(values)
    series[rng(seed).random(len(series)) < share] = None
    return series


def german_houses() -> Person:
    """A spreadsheet in Europe: semicolons, decimal commas, points for thousands, a byte-order mark, dates."""
    draw = rng(0)
    area, colour = draw.uniform(40, 200, ROWS), draw.choice(["rot", "grün", "blau"], ROWS)
    sold = pd.Timestamp("2019-03-01") + pd.to_timedelta(draw.integers(0, 1400, ROWS), unit="D")
    season = np.sin(2 * np.pi * sold.day_of_year / 365)
    y = 2e5 + 1000 * area + 80_000 * (colour == "rot") + 60_000 * season + 2e4 * draw.normal(size=ROWS)
    clean = pd.DataFrame({"Fläche": gaps(area, 0.1, 1), "Farbe": colour.astype(object), "verkauft": sold})

    def number(value: float, digits: int) -> str:
        plain = f"{value:,.{digits}f}"
        return "" if np.isnan(value) else plain.replace(",", "_").replace(".", ",").replace("_", ".")

    def write(path: Path, frame: pd.DataFrame) -> None:
        text = frame.assign(
            Fläche=[number(v, 1) for v in frame["Fläche"]], verkauft=frame["verkauft"].dt.strftime("%d.%m.%Y")
        )
        if "price" in frame:
            text["price"] = [number(v, 0) for v in frame["price"]]
        path.write_bytes(b"\xef\xbb\xbf" + text.to_csv(sep=";", index=False, lineterminator="\r\n").encode())

    says = ("separated by ';'", "comma", "'Kunden-ID' left out", "the year they fall", "without a value get the median")
    return Person(
        clean, np.asarray(y), write, says=says, noise=pd.DataFrame({"Kunden-ID": draw.permutation(9 * ROWS)[:ROWS]})
    )


def airports() -> Person:
    """The bundled airports with their codes, names and time zones, separated by tabs."""
    import airportsdata

    all_of_them = pd.DataFrame(airportsdata.load("LID").values())
    lower = all_of_them.query("country == 'US' and -125 < lon < -100 and 31 < lat < 49 and elevation != 0")
    some = lower.sample(ROWS, random_state=0).reset_index(drop=True)
    clean = some[["tz", "lat", "lon"]].astype({"tz": object})

    def write(path: Path, frame: pd.DataFrame) -> None:
        frame.to_csv(path, sep="\t", index=False)

    says = ("separated by a tab", "'lid' left out", "'name' left out", "'tz': ")
    return Person(clean, some["elevation"].to_numpy(float), write, "tsv", "elevation", ("--kernel", "matern32"), says,
                  some[["lid", "name"]])  # fmt: skip


def american_sales() -> Person:
    """Money with signs and thousands in quotes, an index that pandas wrote, words for nothing."""
    draw = rng(2)
    income, age = draw.uniform(2e4, 3e5, ROWS).round(-2), draw.integers(18, 90, ROWS).astype(float)
    y = 3 * np.sqrt(income) + 8 * np.abs(age - 50) + 20 * draw.normal(size=ROWS)
    clean = pd.DataFrame({"income": income, "age": gaps(age, 0.15, 3)})

    def write(path: Path, frame: pd.DataFrame) -> None:
        text = frame.assign(income=[f"${v:,.2f}" for v in frame["income"]], age=frame["age"].map("{:g}".format))
        if "spent" in frame:
            text["spent"] = [f"$ {v:,.2f}" for v in frame["spent"]]
        text.replace("nan", "n/a").to_csv(path)

    return Person(clean, y, write, target="spent", says=("'column 1' left out", "'age': ", "get the median"))


def sensor() -> Person:
    """A day's course in hourly stamps, compressed, with dashes for gaps."""
    draw = rng(4)
    order = draw.permutation(ROWS)
    at = pd.Timestamp("2024-05-01") + pd.to_timedelta(order * 1.5, unit="h")
    wind = draw.uniform(0, 10, ROWS)
    y = 15 + 8 * np.sin(2 * np.pi * (at.hour + at.minute / 60) / 24) - 0.5 * wind + draw.normal(size=ROWS)
    clean = pd.DataFrame({"at": at, "wind": gaps(wind, 0.1, 5)})

    def write(path: Path, frame: pd.DataFrame) -> None:
        text = frame.assign(at=frame["at"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")).to_csv(index=False, na_rep="-")
        path.write_bytes(gzip.compress(text.encode()))

    return Person(clean, y.to_numpy(), write, "csv.gz", "temperature", says=("'at': dates", "day"))


def shops() -> Person:
    """More shops than inputs; some of them are new when it comes to predicting."""
    draw = rng(6)
    shop = np.minimum(draw.geometric(0.12, ROWS), 60)
    size = draw.uniform(0, 1, ROWS)
    y = 10 * np.cos(shop) * (shop < 12) + 5 * size + 0.5 * draw.normal(size=ROWS)
    clean = pd.DataFrame({"shop": [f"s{one}" for one in shop], "size": size}, dtype=object).astype({"size": float})

    def write(path: Path, frame: pd.DataFrame) -> None:
        frame.to_csv(path, sep="|", index=False)

    return Person(clean, y, write, "txt", "sales", says=("separated by '|'", "'shop': "))


def parquet() -> Person:
    """Typed columns: dates, categories and flags, with gaps of their own."""
    draw = rng(7)
    kind, flag = draw.choice(["a", "b", "c", "d"], ROWS), draw.random(ROWS) < 0.5
    at = pd.Timestamp("2010-01-01") + pd.to_timedelta(draw.integers(0, 3000, ROWS), unit="D")
    y = 3 * (kind == "b") - 2 * (kind == "c") + 2 * flag + np.cos(2 * np.pi * at.day_of_year / 365)
    y = np.asarray(y + 0.2 * draw.normal(size=ROWS))
    clean = pd.DataFrame({"kind": gaps(kind.astype(object), 0.1, 8), "flag": flag.astype(float), "at": at})

    def write(path: Path, frame: pd.DataFrame) -> None:
        frame.astype({"kind": "category", "flag": bool}).to_parquet(path, index=False)

    return Person(clean, y, write, "parquet", "result", says=("'kind': 4 categories", "'at': dates"))


def old_spreadsheet() -> Person:
    """Windows' own text, answers of yes and no, a target that is not always there."""
    draw = rng(9)
    town, garden = draw.choice(["Köln", "Zürich", "Malmö"], ROWS), draw.choice(["ja", "nein"], ROWS)
    rooms = draw.integers(1, 8, ROWS).astype(float)
    y = 200 * rooms + 300 * (town == "Zürich") + 150 * (garden == "ja") + 30 * draw.normal(size=ROWS)
    clean = pd.DataFrame({"Stadt": town.astype(object), "Garten": garden.astype(object), "Zimmer": rooms})

    def write(path: Path, frame: pd.DataFrame) -> None:
        path.write_bytes(frame.to_csv(sep=";", decimal=",", index=False).encode("cp1252"))

    return Person(clean, y, write, target="Miete", says=("Windows-1252", "'Stadt': 3 categories"))


def laboratory() -> Person:
    """No names at all; question marks where nothing was measured."""
    draw = rng(10)
    x = draw.normal(size=(ROWS, 3))
    y = np.sin(2 * x[:, 0]) + x[:, 1] ** 2 + 0.1 * draw.normal(size=ROWS)
    clean = pd.DataFrame({"1": x[:, 0], "2": x[:, 1], "3": gaps(x[:, 2], 0.2, 11)})

    def write(path: Path, frame: pd.DataFrame) -> None:
        frame.to_csv(path, index=False, header=False, na_rep="?")

    return Person(clean, y, write, target="4", says=("'column 3': ", "get the median"))


PEOPLE = [german_houses, airports, american_sales, sensor, shops, parquet, old_spreadsheet, laboratory]


@pytest.mark.parametrize("make", PEOPLE, ids=lambda make: make.__name__)
def test_from_fit_to_predict(make: Callable[[], Person], tmp_path: Path) -> None:
    person = make()
    given = person.clean if person.noise.empty else pd.concat([person.noise, person.clean], axis=1)
    train, new = tmp_path / f"train.{person.ending}", tmp_path / f"new.{person.ending}"
    person.write(train, given[:TRAIN].assign(**{person.target: person.y[:TRAIN]}))
    person.write(new, given[TRAIN:])
    said = run("fit", train, "--target", person.target, "-o", tmp_path / "model", *person.arguments)
    for words in person.says:
        assert words in said
    run("predict", tmp_path / "model", new, "-o", tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv")["mean"]
    assert len(found) == TEST
    wanted = r2_score(person.y[TRAIN:], by_hand(person))
    assert wanted > 0.4  # there is something to learn
    assert r2_score(person.y[TRAIN:], found) > wanted - CLOSE


# What cannot be guessed: one sentence, all of it, and nothing half-written.


def refused(tmp_path: Path, text: str, *arguments: object) -> str:
    data = tmp_path / "data.csv"
    data.write_text(text)
    before = sorted(tmp_path.iterdir())
    output = run("fit", data, "-t", "y", "-o", tmp_path / "model", *arguments, code=2)
    (said,) = [line for line in output.splitlines() if line.startswith("rtgp: error: ")]
    assert "Traceback" not in output
    assert sorted(tmp_path.iterdir()) == before
    return said


def rows_of(*columns: list[object]) -> str:
    return "\n".join(",".join(map(str, row)) for row in zip(*columns, strict=True)) + "\n"


def test_mixed_dates_name_the_row(tmp_path: Path) -> None:
    said = refused(tmp_path, "at,y\n2020-01-31,1\n2020-02-15,2\n16/02/2020,3\n2020-02-17,4\n")
    assert "column 'at' holds dates as '2020-01-31' in row 1, but row 3 holds '16/02/2020'" in said
    assert "--drop" in said


def test_a_target_of_words(tmp_path: Path) -> None:
    said = refused(tmp_path, "x,y\n1,red\n2,blue\n3,red\n")
    assert "the target 'y' holds words ('red' in row 1)" in said
    assert "--target" in said
    assert "the target 'y' holds dates" in refused(tmp_path, "x,y\n1,2020-01-01\n2,2020-01-02\n3,2020-01-05\n")


def test_all_bad_columns_at_once(tmp_path: Path) -> None:
    said = refused(tmp_path, "a,b,c,y\n1,2,inf,1\n2,x,4,2\n3?,5,6,3\n4,6,7,4\n")
    for words in ("column 'a' holds numbers, but row 3 holds '3?'", "column 'b' holds numbers, but row 2 holds 'x'",
                  "column 'c' is inf in row 1", "--categories"):  # fmt: skip
        assert words in said


def test_as_the_sentence_says_it_goes_on(tmp_path: Path) -> None:
    rooms = ["1", "2", "3+", "2"] * 6
    text = "rooms,y\n" + rows_of(rooms, [{"1": 1, "2": 2, "3+": 5}[one] + 0.01 * i for i, one in enumerate(rooms)])
    assert "--categories" in refused(tmp_path, text)
    run("fit", tmp_path / "data.csv", "-t", "y", "-o", tmp_path / "model", "--categories", "rooms")
    (tmp_path / "new.csv").write_text("rooms\n1\n3+\n")
    found = run("predict", tmp_path / "model", tmp_path / "new.csv").splitlines()
    assert [round(float(one)) for one in found[1:]] == [1, 5]


@pytest.mark.parametrize("repeated", [1, 3])
def test_a_hundred_thousand_levels(tmp_path: Path, repeated: int) -> None:
    n = 100_000
    words = [f"w{i}" for i in range(n)] * repeated
    text = "word,y\n" + rows_of(words, list(range(len(words))))
    said = refused(tmp_path, text)
    assert f"'word' has 100,000 different words in {n * repeated:,} rows" in said
    assert "group them first" in refused(tmp_path, text, "--inputs", "word")


def test_a_table_larger_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.csv").write_text("x,y\n" + "1,2\n" * 1000)
    monkeypatch.setattr("rtgp.datasets._limits.available_memory", lambda: 1000)
    said = run("fit", tmp_path / "data.csv", "-t", "y", "-o", tmp_path / "model", code=1)
    assert "GiB of memory are left. Read fewer rows or columns" in said
    assert [one.name for one in tmp_path.iterdir()] == ["data.csv"]


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    text = "a,y\n1,2\n2,3\n3,5\n"
    assert "no column 'b', 'c', named by --inputs. It has 'a', 'y'" in refused(tmp_path, text, "--inputs", "b,c,a")
    assert "named by --id" in refused(tmp_path, text, "--id", "key")
    assert "--drop names the target" in refused(tmp_path, text, "--drop", "y")


def test_without_preprocessing_anything_but_numbers_is_refused(tmp_path: Path) -> None:
    text = "a,b,y\n1,red,2\n2,blue,3\n3,red,5\n4,red,6\n"
    assert "row 1, column 'b' holds 'red'" in refused(tmp_path, text, "--preprocess", "none")
    run("fit", tmp_path / "data.csv", "-t", "y", "-o", tmp_path / "m", "--preprocess", "none", "--drop", "b")
    assert not hasattr(GPRegressor.load(tmp_path / "m"), "table_encoder_")


# What stays beside the predictions, and what scripts read.


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keyed")
    x = rng(0).uniform(size=40)
    keys = [f"{i:04d}" for i in range(40)]
    text = "key,x,kind,y\n" + rows_of(keys, list(x), ["a", "b"] * 20, list(np.sin(6 * x)))
    (folder / "data.csv").write_text(text)
    run("fit", folder / "data.csv", "-t", "y", "-o", folder / "model", "--id", "key")
    return folder


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet"])
def test_keys_are_kept_as_they_are_written(keyed: Path, ending: str, tmp_path: Path) -> None:
    out = tmp_path / f"out.{ending}"
    run("predict", keyed / "model", keyed / "data.csv", "-o", out, "--std")
    text = {"dtype": {"key": str}, "sep": "\t" if ending == "tsv" else ","}
    found = pd.read_parquet(out) if ending == "parquet" else pd.read_csv(out, **text)
    assert list(found.columns) == ["key", "mean", "std"]
    assert found["key"].tolist()[:2] == ["0000", "0001"]
    frame = pd.read_csv(keyed / "data.csv")
    gp = GPRegressor.load(keyed / "model")
    np.testing.assert_array_equal(found["mean"], gp.predict(gp.table_encoder_.transform(frame)))


def test_json(keyed: Path, tmp_path: Path) -> None:
    import json

    def asked(*args: object) -> object:
        result = CliRunner().invoke(app, [*map(str, args), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    data, model = keyed / "data.csv", keyed / "model"
    fitted = asked("fit", data, "-t", "y", "-o", tmp_path / "m", "--steps", 3, "--holdout", 0.2)
    assert (fitted["target"], fitted["rows"], fitted["steps"]) == ("y", 32, 3)
    assert fitted["held-out"]["rows"] == 8
    shown = asked("info", model)
    assert shown["table"]["left_out"] == {}
    assert shown["ids"] == ["key"]
    rows = asked("predict", model, data, "--std")
    assert len(rows) == 40
    assert set(rows[0]) == {"key", "mean", "std"}
    compared = asked("compare", data, "-t", "y", "--drop", "key", "--methods", "cholesky", "--steps", 2)
    assert compared["methods"][0]["method"] == "cholesky"
    diagnosed = asked("diagnose", data, "-t", "y", "--drop", "key", "--iterations", 3)
    assert diagnosed["hyperparameters"]


def test_gaps_and_words_that_training_did_not_know(keyed: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("x,kind\n0.5,a\n,b\n0.5,z\n")
    said = run("predict", keyed / "model", tmp_path / "new.csv", "-o", tmp_path / "out.csv", code=2)
    assert "row 2, column 'x' is missing (NaN)" in said
    assert "--gaps impute" in said
    said = run("predict", keyed / "model", tmp_path / "new.csv", "-o", tmp_path / "out.csv", "--gaps", "impute")
    assert "'kind': the model does not know 'z'" in said
    assert len(pd.read_csv(tmp_path / "out.csv")) == 3
