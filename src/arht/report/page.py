"""From the record to one HTML file that fetches nothing: style, script, figures and pictures are inside it.

What comes from files is untrusted. The template escapes it, JSON inside the page cannot close its element, the script
sets text and never markup, and the page's own policy lets nothing but that one script and style run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from arht.errors import InputError
from arht.report import figures
from arht.report.words import GUARANTEES, METHOD_NAMES, METHOD_WORDS, OUTCOMES, estimate, number

__all__ = ["render", "write"]

GALLERY = 10
SECTIONS = {
    "decision": "Decision",
    "scores": "Scores",
    "evidence": "P-values",
    "pictures": "Pictures",
    "queries": "Queries",
    "audit": "Audit",
    "settings": "Settings",
    "record-part": "Record",
}


def render(record: Mapping[str, Any], *, pictures: Mapping[int, Mapping[str, Any]] | None = None) -> str:
    """The page of a record from `arht.report.facts.collect`.

    `pictures` are data URIs by position in the record's table: ``{"src", "width", "height"}``.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
    from markupsafe import Markup, escape

    report, run = record["report"], {"guarantee": "none", **record["run"]}
    record = {"report": report, "run": run}
    style, script = (_asset(name) for name in ("page.css", "page.js"))

    def n(pointer: str, kind: str = "auto") -> Any:
        value = at(record, pointer)
        text = number(value, kind)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return Markup('<span data-field="{}" title="{}">{}</span>').format(pointer, pointer, text)
        return Markup('<data value="{}" data-field="{}" title="{}">{}</data>').format(
            json.dumps(value), pointer, pointer, text
        )

    def e(pointer: str, places: int = 1) -> Any:
        found = at(record, pointer)
        if not found or found.get("value") is None:
            return escape("not available")
        return Markup('<data value="{}" data-field="{}/value" title="{}">{} <small>{}</small></data>').format(
            json.dumps(found["value"]), pointer, pointer, *estimate(found, places)
        )

    environment = Environment(
        loader=PackageLoader("arht.report", "."),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
    )
    decisions = report["decisions"]
    drawn = {name: Markup(svg) for name, svg in _figures(report).items()}
    items = _items(report)
    shown = dict(pictures or {})
    gallery = _gallery(report, items, shown)
    names = {
        key: words
        for key, words in SECTIONS.items()
        if (key != "decision" or decisions)
        and (key != "scores" or drawn["scores"])
        and (key != "evidence" or drawn["pvalues"] or drawn["roc"])
        and (key != "pictures" or gallery["most"])
    }
    return environment.get_template("page.html.j2").render(
        report=report,
        run={key: run.get(key) for key in (*run, "detector", "calibration", "audit", "smallest_pvalue", "guarantee")},
        table=report["table"],
        items=items,
        gallery=gallery,
        figures=drawn,
        groups=[group["name"] for group in (report["scores"] or {"groups": []})["groups"]],
        fdrs=list(dict.fromkeys(entry["fdr"] for entry in decisions)),
        methods=list(dict.fromkeys(entry["method"] for entry in decisions)),
        sections=names.items(),
        n=n,
        e=e,
        percent=lambda value: number(value, "percent"),
        pointer=_escaped,
        brief=lambda mapping: {key: v for key, v in mapping.items() if key not in ("quantiles", "record")},
        given=_given,
        scalars=lambda mapping: {key: v for key, v in mapping.items() if not isinstance(v, dict | list)},
        method_names=METHOD_NAMES,
        method_words=METHOD_WORDS,
        guarantees=GUARANTEES,
        outcomes=OUTCOMES,
        version=version("arht"),
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        record_json=Markup(_json(record)),
        pictures_json=Markup(_json({"queries": {str(i): picture["src"] for i, picture in shown.items()}})),
    )


def write(path: str | os.PathLike[str], html: str) -> Path:
    """Write the page; it appears whole, under another name first."""
    file = Path(path)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise InputError(f"arht report: --out must be a file in an existing folder; got {file}. Make the folder first.")
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(html, encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(
            f"arht report: --out must be a file that can be written; got {file}: {error.strerror}. "
            "Check its folder, its permissions and the free space."
        ) from None
    return file


def at(record: Any, pointer: str) -> Any:
    """The value that a JSON pointer (RFC 6901) names, None where there is none."""
    for word in pointer.split("/")[1:]:
        key = word.replace("~1", "/").replace("~0", "~")
        record = record[int(key)] if isinstance(record, list) else (record or {}).get(key)
    return record


def _given(value: Any) -> Any:
    """Without what has no value, at any depth, and without the quantiles of summaries."""
    if isinstance(value, Mapping):
        return {key: _given(v) for key, v in value.items() if v is not None and key != "quantiles"}
    return value


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _json(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: U+2028 and the like are escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (files("arht.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _figures(report: Mapping[str, Any]) -> dict[str, str]:
    scores, ranking = report["scores"], report["ranking"]
    found = dict.fromkeys(("scores", "scores_narrow", "pvalues", "roc", "pr"), "")
    if scores:
        found["scores"] = figures.score_figure(scores, report["decisions"], 1000, "scores")
        found["scores_narrow"] = figures.score_figure(scores, report["decisions"], 380, "scores-narrow")
    if report["pvalues"]:
        found["pvalues"] = figures.pvalue_figure(report["pvalues"], "pvalues-figure")
    if ranking:
        curves, blind = ranking["curves"], ranking["blind"]["aupr"]
        found["roc"] = figures.ranking_figure(curves["roc"], None, "roc", "roc")
        found["pr"] = figures.ranking_figure(curves["precision_recall"], blind, "precision_recall", "pr")
    return found


def _items(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of the table, as the template needs them."""
    columns = report["table"]["columns"]
    own = next((entry for entry in report["decisions"] if entry["chosen"]), None)
    found = []
    for i, (row, p) in enumerate(zip(columns["row"], columns["pvalue"], strict=True)):
        found.append(
            {
                "name": str(columns["id"][i]) if "id" in columns else f"row {row}",
                "file": columns["file"][i] if "file" in columns else None,
                "p": p,
                "ood": columns["ood"][i] if "ood" in columns else None,
                "flagged": own is not None and p is not None and own["rejected"] > 0 and p <= own["threshold"],
            }
        )
    return found


def _gallery(
    report: Mapping[str, Any], items: list[dict[str, Any]], pictures: Mapping[int, Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    tested = [i for i, item in enumerate(items) if item["p"] is not None and i in pictures]
    most = tested[:GALLERY]
    least = [i for i in reversed(tested) if i not in most][:GALLERY]
    return {
        name: [{**items[i], **pictures[i], "at": i, "p": json.dumps(items[i]["p"])} for i in places]
        for name, places in (("most", most), ("least", least))
    }
