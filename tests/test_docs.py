"""Every snippet of the README and the docs runs, and prints what the page says it prints; docstrings too.

A ``python`` block is executed (with prompts: as a doctest); a ``text`` block is what the blocks since the last one
printed. In a ``console`` block, each ``$ arht ...`` is run and what follows is its output. Three dots stand for
anything. A page is one namespace and one empty working folder.
"""

import doctest
import importlib
import io
import pkgutil
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.myst import CodeBlockParser

import arht
from arht.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = sorted({module.name for module in pkgutil.walk_packages(arht.__path__, "arht.")} - {"arht.__main__"})


def agree(expected, got):
    """None, or how they differ."""
    checker = doctest.OutputChecker()
    if checker.check_output(expected, got, FLAGS):
        return None
    return checker.output_difference(doctest.Example("", expected), got, FLAGS)


def python(example):
    printed = example.namespace.setdefault("_printed", io.StringIO())
    source, place = str(example.parsed), f"{example.path}:{example.line}"
    if source.startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(source, example.namespace, place, example.path, example.line)
        failed = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, clear_globs=False).failed
        example.namespace.update(test.globs)
        return f"{failed} of the examples failed" if failed else None
    with redirect_stdout(printed):
        exec(compile("\n" * example.line + source, place, "exec"), example.namespace)
    return None


def text(example):
    printed = example.namespace["_printed"]
    got = printed.getvalue()
    printed.seek(0)
    printed.truncate()
    return agree(str(example.parsed), got)


def console(example):
    for command in ("\n" + str(example.parsed)).split("\n$ ")[1:]:
        line, _, expected = command.partition("\n")
        words = shlex.split(line, comments=True)
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            code = main(words[1:])
        assert words[0] == "arht"
        if code != (2 if re.match(r"\w+: ", expected) else 0):
            return f"{line}: exit code {code}\n{out.getvalue()}"
        if expected.strip() and (difference := agree(expected, out.getvalue())):
            return f"{line}\n{difference}"
    return None


SYBIL = Sybil([CodeBlockParser(kind.__name__, kind) for kind in (python, text, console)])


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_snippets(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for example in SYBIL.parse(page).examples():
        example.evaluate()


def test_snippets_are_found():
    counts = {page.stem: len(list(SYBIL.parse(page).examples())) for page in PAGES}
    assert all(counts[name] for name in ("README", "tutorial", "guarantees", "command-line"))


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert failed == 0


def test_each_test_has_an_example():
    for function in (arht.hotelling_test, arht.rht_test, arht.arht_test, arht.arht_scores):
        assert doctest.DocTestParser().get_examples(function.__doc__)


def test_every_public_name_is_on_the_api_page():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    documented = {line.split()[-1] for line in page.splitlines() if line.startswith(".. auto")}
    for name in set(arht.__all__) - {"__version__"}:
        home = getattr(arht, name).__module__
        assert home in documented or f"{home}.{name}" in documented, name
    for module in pkgutil.iter_modules(arht.stats.__path__, "arht.stats."):
        assert module.name.rpartition(".")[2].startswith("_") or module.name in documented, module.name
