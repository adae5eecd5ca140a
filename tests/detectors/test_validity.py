"""The record of validity on real data: complete, without a failure; and the benchmark's own bands."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import validity

RECORD = json.loads((Path(__file__).parents[2] / "results" / "validity.json").read_text(encoding="utf-8"))


def test_the_record_is_whole_and_holds():
    assert RECORD["settings"]["splits"] == 200
    assert validity.failures(RECORD) == []
    assert len({row["data"] for row in RECORD["rows"]}) == 4
    tables = validity.render(RECORD)
    assert tables.count("\n|") == 2 * (2 + len(RECORD["rows"]))
    assert "**" not in tables


def test_a_failure_is_seen():
    spoiled = json.loads(json.dumps(RECORD))
    spoiled["rows"][0]["levels"][1] |= {"realised": 0.2, "holds": False}
    assert validity.failures(spoiled) == [f"{RECORD['rows'][0]['data']}, global: levels 0.05: 0.2"]
    assert "**20.00" in validity.render(spoiled)


@pytest.mark.parametrize("two_sided", [False, True])
def test_the_band_of_a_sum_over_splits(two_sided):
    """Against 4,000 simulated sums of 5 splits: the band leaves out what it says, within a 1e-6 binomial band."""
    from scipy.stats import betabinom, binom

    rng = np.random.default_rng(0)
    low, high, mean = validity.band(0.1, 20, 99, 5, two_sided, 0.1)
    assert mean == pytest.approx(0.1)
    sums = betabinom(20, 10, 90).rvs(size=(4_000, 5), random_state=rng).sum(1)
    assert sums.mean() / 100 == pytest.approx(0.1, abs=0.004)
    outside = int(((sums < low) | (sums > high)).sum())
    assert outside <= binom.ppf(1 - 1e-6, 4_000, 0.1)
    inner = int(((sums <= low) | (sums >= high)).sum())
    assert inner >= binom.ppf(1e-6, 4_000, 0.1)


@pytest.mark.filterwarnings("ignore::arht.errors.ResolutionWarning")
def test_splits_hold_apart_what_they_should():
    """On the real tables, few splits: sizes add up, and each detector runs."""
    for name, pool in validity.tables().items():
        assert pool.fit + pool.calibration + pool.queries <= len(pool.labels), name
        for mode in pool.modes:
            counts, shares = validity.one_split(pool, mode, np.random.default_rng(0))
            assert 0 <= counts[0] <= counts[1] <= counts[2] <= pool.queries
            assert all(0 <= share <= 1 for pair in shares for share in pair)
