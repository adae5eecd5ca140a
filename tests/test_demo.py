"""The demo, run for real: what it prints about its numbers is so."""

import json
import math

import pytest

from arht import demo
from arht.cli import main

CALIBRATION_RANK = 28  # floor(0.05 · 578): p <= 0.05 is a rank of at most this among 577 calibration images


@pytest.fixture(scope="module")
def record():
    return demo.run()


def test_samples_of_two_digits_differ_and_of_one_digit_do_not(record):
    hotelling, *others = record.two_sample
    assert (hotelling.different, hotelling.guarantee) == (None, None)
    assert record.refusal.startswith("hotelling_test: needs P < n1 + n2 - 1; got P=64, n1=25, n2=25.")
    assert [row.guarantee for row in others] == ["asymptotic", "asymptotic", "exact"]
    for row in others:
        assert row.different < 0.001
        assert row.same > 0.05


def test_false_alarms_of_disjoint_pairs(record):
    """P(more than 9 of 30) is 1e-6 at a level of 5 % (binomial), and 0.94 at one of 46 %."""
    assert record.pairs == 30
    assert all(row.rejected <= 9 for row in record.two_sample[1:])


def test_conformal_false_alarms_are_at_their_level_and_asymptotic_ones_are_not(record):
    """Given the images, false alarms of a split are beta-binomial; the splits are independent.

    Five standard errors are met by chance once in a million; a true level of 9 % is noticed with 0.999.
    """
    assert (record.calibration, record.known, record.unseen) == (577, 289, 354)
    level = CALIBRATION_RANK / (record.calibration + 1)
    variance = level * (1 - level) * (1 / (record.calibration + 2) + 1 / record.known)
    for found in record.detection:
        assert abs(found.conformal.mean - level) < 5 * math.sqrt(variance / demo.SPLITS)
        assert found.asymptotic.mean > 0.9


def test_scores_rank_unseen_digits_higher_and_the_nearest_reference_ranks_best(record):
    one, nearest = record.detection
    assert one.auroc.mean - one.auroc.half > 0.5
    assert one.auroc.mean + one.auroc.half < nearest.auroc.mean - nearest.auroc.half


def test_decisions_keep_the_rate(record):
    """FDR <= share of the known · 5 %; the slack is three times the half interval."""
    share = record.known / (record.known + record.unseen)
    for found in record.detection:
        assert found.fdr.mean <= 0.05 * share + 3 * found.fdr.half
        assert 0 <= found.power.mean <= 1
    nearest = record.detection[1]
    assert nearest.decided.mean > 0
    assert nearest.power.mean > 0
    assert record.needed == math.ceil((record.known + record.unseen) / (0.05 * (record.calibration + 1)))


def test_the_same_seed_gives_the_same_images_and_copies():
    import torch

    images = torch.arange(128, dtype=torch.float64).reshape(2, 64)
    copies = [demo.moved_copies(images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(copies[0], copies[1])
    assert not torch.equal(copies[0], copies[2])
    # on a plane with slopes 1 (column) and 8 (row), half a pixel moves an inner value by at most 4.5
    inner = (copies[0] - images[:, None]).reshape(2, demo.DRAWS, 8, 8)[:, :, 1:-1, 1:-1]
    assert 0 < inner.abs().max() <= 4.5
    assert (inner - inner[:, :, :1, :1]).abs().max() < 1e-9


def test_the_command_prints_the_record_and_writes_the_report(record, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(demo, "run", lambda: record)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    flat = " ".join(out.split())
    assert record.refusal in flat
    for found in record.detection:
        assert found.auroc.show() in out
        assert found.conformal.show(100, 1) in out
    assert f"{record.needed} queries must reach that floor" in flat
    assert "Next: arht test X Y" in flat
    assert out.rstrip().endswith(str(tmp_path / "demo" / "report.html"))
    html = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    page = json.loads(html.split('id="record">')[1].split("</script>")[0])
    assert page["run"]["guarantee"] == "conformal"
    assert page["run"]["audit"]["passed"]
    assert page["report"]["ranking"]["metrics"]["n_out"] == record.unseen
    # one split: within the intervals of its own and of the mean over splits, widened to five standard errors
    auroc, mean = page["report"]["ranking"]["metrics"]["auroc"], record.detection[1].auroc
    assert abs(auroc["value"] - mean.mean) < 5 / 1.96 * ((auroc["high"] - auroc["low"]) / 2 + mean.half)
    assert html.count("data:image/png") > 100
