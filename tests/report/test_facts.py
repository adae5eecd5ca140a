"""What the page shows is what the statistics and the evaluation say of the same file."""

import time
import warnings

import numpy as np
import pytest

from arht.errors import InputError, ResolutionWarning
from arht.evaluation import auroc, realised_fdr
from arht.report import collect, render
from arht.report.histograms import score_histograms
from arht.stats import decide


@pytest.fixture(scope="module")
def record(digits):
    return collect(digits["columns"], digits["run"], rows=100)


def test_decisions_are_those_of_decide(record, digits):
    pvalues = digits["columns"]["pvalue"]
    entries = record["report"]["decisions"]
    assert [(entry["method"], entry["fdr"]) for entry in entries] == [
        (method, fdr) for method in ("bh", "by") for fdr in (0.01, 0.05, 0.1, 0.2)
    ]
    for entry in entries:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResolutionWarning)
            decision = decide(pvalues, fdr=entry["fdr"], method=entry["method"])
        assert entry["rejected"] == decision.rejected_count
        # the page flags by the p-value alone: this is the same set
        again = (pvalues <= entry["threshold"]) & (entry["rejected"] > 0)
        assert (again == decision.rejected).all()
        assert entry["realised_fdr"] == realised_fdr(decision, digits["columns"]["label"]).as_dict()
        if entry["score_cut"] is not None:
            assert ((digits["columns"]["score"] >= entry["score_cut"]) == decision.rejected).all()
    chosen = [entry for entry in entries if entry["chosen"]]
    assert [(entry["method"], entry["fdr"]) for entry in chosen] == [("bh", 0.2)]
    assert chosen[0]["score_cut"] is not None
    assert record["report"]["file_decision"] == {"rejected": chosen[0]["rejected"], "agrees": True}


def test_a_file_with_rows_taken_out_is_said_so(digits):
    fewer = {name: values[100:] for name, values in digits["columns"].items()}
    assert collect(fewer, digits["run"])["report"]["file_decision"]["agrees"] is False


def test_ranking_is_that_of_the_evaluation(record, digits):
    score, label = digits["columns"]["score"], digits["columns"]["label"].astype(bool)
    known = ~np.isnan(score)
    expected = auroc(score[known & ~label], score[known & label])
    assert record["report"]["ranking"]["metrics"]["auroc"] == expected.as_dict()
    assert record["report"]["ranking"]["metrics"]["untested_in"] == 1
    assert collect(digits["columns"], digits["run"], rows=100) == record  # the bootstrap has its seed


def test_the_table_holds_both_ends_and_the_untested(record, digits):
    table, score = record["report"]["table"], digits["columns"]["score"]
    assert (table["most"], table["least"], table["untested"], table["of"]) == (89, 10, 1, 599)
    order = np.argsort(-score)[:598]
    assert table["columns"]["row"] == [*order[:89].tolist(), *order[-10:].tolist(), 5]
    assert table["rank"] == [*range(1, 90), *range(589, 599), 599]
    assert table["columns"]["score"][-1] is None
    assert collect(digits["columns"], digits["run"], rows=599)["report"]["table"]["shown"] == 599


def test_quantiles_draw_the_histogram_of_their_scores(digits):
    whole = score_histograms({"calibration": digits["calibration"], "queries": digits["columns"]["score"]})
    brief = score_histograms({"calibration": digits["run"]["calibration"], "queries": digits["columns"]["score"]})
    assert whole["edges"][0] == pytest.approx(brief["edges"][0], rel=0.05)
    for found in (whole, brief):
        for group in found["groups"]:
            assert sum(group["share"]) == pytest.approx(1)
    within = np.interp(20, brief["edges"][1:], np.cumsum(brief["groups"][0]["share"]))
    assert within == pytest.approx((digits["calibration"] <= 20).mean(), abs=0.03)
    assert whole["groups"][0]["from"] == "scores"


def test_what_is_beyond_the_axis_is_counted(digits):
    scores = np.r_[np.linspace(0, 10, 990), np.linspace(1e3, 2e3, 10)] - 5.0
    levels = np.linspace(0, 1, 201)
    summary = {"n": 1000, "quantiles": np.quantile(scores, levels).tolist()}
    found = score_histograms({"calibration": summary, "queries": scores})
    assert not found["log"]
    assert found["edges"][-1] < 20
    assert [group["below"] for group in found["groups"]] == [0, 0]
    assert found["groups"][1]["above"] == 10
    assert found["groups"][0]["above"] == pytest.approx(10, abs=5)  # quantiles are a two-hundredth apart
    assert found["groups"][1]["share"][-1] == pytest.approx(0.01)
    assert found["groups"][0]["share"][-1] == pytest.approx(0.01, abs=0.005)


@pytest.mark.parametrize(("scale", "log"), [(1.0, False), (1e4, True)])
def test_the_axis_is_logarithmic_where_scores_span_magnitudes(scale, log):
    rng = np.random.default_rng(0)
    found = score_histograms({"calibration": rng.chisquare(9, 500), "queries": scale * rng.chisquare(9, 500)})
    assert found["log"] is log
    assert found["edges"][-1] >= np.quantile(scale * rng.chisquare(9, 500), 0.9)


@pytest.mark.parametrize("values", [[3.0, 3.0, 3.0], [1.0], [0.0, np.inf, 2.0]])
def test_odd_scores_still_have_a_histogram(values):
    found = score_histograms({"queries": np.array(values), "none": np.array([np.nan])})
    assert sum(found["groups"][0]["share"]) == pytest.approx(1)
    assert score_histograms({"queries": np.array([np.nan])}) is None


def test_class_labels_are_refused(digits):
    with pytest.raises(InputError, match="labels must be 0"):
        collect(digits["columns"], digits["run"], labels=np.arange(599))


@pytest.mark.parametrize(
    "wrong",
    [
        {"guarantee": "sure"},
        {"decision": 3},
        {"smallest_pvalue": "x"},
        {"audit": [1]},
        {"calibration": {"quantiles": ["x"]}},
    ],
)
def test_a_record_that_is_none_is_refused(wrong, digits):
    with pytest.raises(InputError, match=f"got {next(iter(wrong))} = "):
        collect(digits["columns"], {**digits["run"], **wrong})


@pytest.mark.parametrize("name", ["score", "pvalue", "row"])
def test_columns_that_are_words_are_refused(name, digits):
    columns = {**digits["columns"], name: np.array(["x"] * 599, dtype=object)}
    with pytest.raises(InputError, match=f"column {name} must hold numbers"):
        collect(columns, digits["run"])


def test_many_rows_make_a_small_page():
    """200,000 rows: the page is as small as that of a thousand."""
    rng = np.random.default_rng(0)
    score = rng.chisquare(9, 200_000)
    calibration = np.sort(rng.chisquare(9, 2000))
    pvalue = (2001 - np.searchsorted(calibration, score)) / 2001
    columns = {"row": np.arange(len(score)), "score": score, "statistic": score, "pvalue": pvalue, "ridge": 0 * score}
    columns |= {"outcome": np.zeros(len(score), int), "adjusted_pvalue": pvalue, "rejected": pvalue < 0}
    run = {"guarantee": "conformal", "smallest_pvalue": 1 / 2001, "calibration": {"n": 2000, "quantiles": [1.0, 30.0]}}
    started = time.perf_counter()
    html = render(collect(columns, run))
    assert len(html) < 500_000
    assert time.perf_counter() - started < 30
