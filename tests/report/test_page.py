"""The page as text: every number is a field of the record, nothing is fetched, nothing from a file is markup."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from arht.cli import main
from arht.errors import InputError
from arht.report import collect, render, write
from arht.report.page import at
from arht.report.svg import Scale, short
from arht.report.words import number
from tests.report.conftest import EVIL


class Page(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.tags, self.data, self.record, self._in = [], [], "", None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        if tag == "data":
            self.data.append([attributes, ""])
        self._in = "record" if attributes.get("id") == "record" else tag

    def handle_endtag(self, tag):
        self._in = None

    def handle_data(self, text):
        if self._in == "data":
            self.data[-1][1] += text
        elif self._in == "record":
            self.record += text


@pytest.fixture(scope="module")
def html(digits):
    return render(collect(digits["columns"], digits["run"], source="scores.parquet"))


def test_each_number_is_the_field_of_the_record_that_it_names(html):
    page = Page(html)
    record = json.loads(page.record)
    assert len(page.data) > 1000
    fields = set()
    for attributes, text in page.data:
        value = at(record, attributes["data-field"])
        assert json.loads(attributes["value"]) == value, attributes
        shown = {
            number(value, kind).strip() for kind in ("auto", "count", "percent", "rate", "brief") if kind != "count"
        }
        shown |= {f"{100 * value:.{places}f} %" for places in (1, 2)}
        assert text.strip() in shown, (attributes, text)
        fields.add(attributes["data-field"])
    for needed in ("/report/queries/untested", "/report/decisions/3/rejected", "/report/ranking/metrics/auroc/value"):
        assert needed in fields


def test_headline_says_what_is_claimed(html, digits):
    rejected = int(digits["columns"]["rejected"].sum())
    assert rejected > 10
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html.split("<header>")[1]))
    assert f"{rejected} of 599 queries flagged at a false-discovery rate of 20 % by Benjamini-Hochberg" in words
    assert "Conformal: for an input exchangeable with the calibration inputs" in words
    assert "1 query (holds a NaN or an infinity)" in words


def test_nothing_is_fetched(html):
    page = Page(html)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "base")
        for name in ("src", "href", "action", "srcset"):
            assert not attributes.get(name) or attributes[name].startswith(("data:", "#")), (tag, attributes)
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"url\(|@import", html)


def test_names_from_files_stay_text(digits):
    columns = {**digits["columns"], "id": np.array([EVIL] * 599, dtype=object), EVIL: np.arange(599)}
    run = {**digits["run"], "settings": {EVIL: EVIL}, "command": EVIL, "null": EVIL, "audit": {EVIL: [EVIL]}}
    clean = [tag for tag, _ in Page(render(collect(digits["columns"], digits["run"]))).tags]
    page = Page(render(collect(columns, run, source=EVIL)))
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == clean.count("script") == 3
    assert "img" not in tags
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert json.loads(page.record)["report"]["table"]["columns"]["id"][0] == EVIL


def test_tables_and_figures_have_names(html):
    page = Page(html)
    tables = [a for tag, a in page.tags if tag == "table"]
    assert len(tables) == 2
    assert html.count("<caption") == 2
    for tag, attributes in page.tags:
        if tag == "th":
            assert attributes["scope"] in ("row", "col")
        if tag == "svg":
            assert attributes["role"] == "img"
            for key in attributes["aria-labelledby"].split():
                assert f'id="{key}"' in html
    keys = [a["id"] for _, a in page.tags if "id" in a]
    assert len(keys) == len(set(keys))


def test_without_a_guarantee_nothing_is_decided(digits):
    columns = {**digits["columns"], "pvalue": np.full(599, np.nan), "rejected": np.zeros(599, bool)}
    html = render(collect(columns, {**digits["run"], "guarantee": "none", "calibration": None}))
    assert "599</data> queries scored" in html
    assert "Nothing is decided" in html
    assert "flagged from here on" not in html


def test_a_page_appears_whole_or_not_at_all(tmp_path):
    write(tmp_path / "page.html", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match="--out must be a file in an existing folder"):
        write(tmp_path / "no" / "page.html", "x")


def test_the_command(scores_file, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert main(["report", str(scores_file), "--out", str(out), "--images", "digits", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["bytes"] == out.stat().st_size < 3_000_000
    html = out.read_text(encoding="utf-8")
    assert html.count("data:image/png") > 300
    assert Page(html).record


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--fdr", "2"], "--fdr must be numbers above 0 and below 1; got 2"),
        (["--rows", "0"], "--rows must be a count; got 0"),
        (["--out", "no/folder.html"], "--out must be a file in an existing folder"),
        (["--labels", "LABELS"], "labels must be 0 (in-distribution) or 1 (OOD) for each of 599 rows; got 3 values"),
    ],
)
def test_wrong_calls_get_one_line(words, line, scores_file, tmp_path, capsys):
    np.save(tmp_path / "labels.npy", np.zeros(3))
    words = [str(tmp_path / "labels.npy") if word == "LABELS" else word for word in words]
    assert main(["report", str(scores_file), "--out", str(tmp_path / "r.html"), *words]) == 2
    told = capsys.readouterr()
    assert line in told.err
    assert told.err.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


def test_axis_numbers():
    assert [short(value) for value in (0, 0.05, 1234, 1e7, 1e-5, 2.5e-4, -3)] == [
        "0", "0.05", "1,234", "10⁷", "10⁻⁵", "2.5·10⁻⁴", "−3",
    ]  # fmt: skip
    assert Scale(0, 1, 0, 100).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert Scale(0.001, 1, 0, 90, log=True)(0.1) == 60
    assert Scale(0.001, 1, 0, 90, log=True).ticks() == pytest.approx([0.001, 0.01, 0.1, 1])
    assert Scale(0, 1, 0, 100)(7) == 100
