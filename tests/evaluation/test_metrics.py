"""The metrics against naive twins and scikit-learn; their intervals against what they promise."""

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom, norm
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_curve

from arht.errors import InputError
from arht.evaluation import (
    accuracy,
    aupr,
    auroc,
    brier,
    clopper_pearson,
    evaluate,
    fpr_at,
    macro_f1,
    power,
    precision_recall,
    realised_fdr,
    roc,
)
from arht.evaluation.decisions import false_alarm_rate
from arht.stats import decide

RNG = np.random.default_rng(0)
INSIDE, OUTSIDE = RNG.normal(size=80).round(1), (RNG.normal(size=60) + 1).round(1)  # rounded: ties


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_auroc_is_the_share_of_ordered_pairs():
    pairs = (OUTSIDE[:, None] > INSIDE).mean() + (OUTSIDE[:, None] == INSIDE).mean() / 2
    assert auroc(INSIDE, OUTSIDE).value == pytest.approx(pairs)
    assert auroc(OUTSIDE, INSIDE).value == pytest.approx(1 - pairs)  # no direction is chosen
    assert auroc(INSIDE, INSIDE).value == 0.5


def test_aupr_and_fpr_by_definition():
    labels = np.r_[np.zeros(80), np.ones(60)]
    expected = average_precision_score(labels, np.r_[INSIDE, OUTSIDE])
    assert aupr(INSIDE, OUTSIDE).value == pytest.approx(expected)
    for tpr in (0.5, 0.8, 0.95, 1.0):
        cuts = [cut for cut in np.unique(np.r_[INSIDE, OUTSIDE]) if (cut <= OUTSIDE).mean() >= tpr]
        assert fpr_at(INSIDE, OUTSIDE, tpr=tpr).value == pytest.approx((max(cuts) <= INSIDE).mean())


def test_auroc_interval_covers():
    """DeLong at 90 %, 400 samples: the number of misses is one that 90 % coverage leaves only 1e-5 of the time."""
    low, high = binom.ppf([5e-6, 1 - 5e-6], 400, 0.1)
    truth, rng = norm.cdf(1 / np.sqrt(2)), np.random.default_rng(1)
    missed = 0
    for _ in range(400):
        found = auroc(rng.normal(size=50), rng.normal(1, 1, size=40), level=0.9)
        missed += not found.low <= truth <= found.high
    assert low <= missed <= high


def test_auroc_of_separated_samples_is_not_certain():
    found = auroc(np.zeros(30), np.ones(20))
    assert (found.value, found.high, found.interval) == (1.0, 1.0, "disjoint pairs")
    assert found.low == pytest.approx(beta.ppf(0.025, 20, 1))


def test_bootstrap_covers_and_needs_a_generator():
    """AUPR at 90 %: of 100 samples the large-sample value is missed by at most 29 (90 % coverage: 1e-7)."""
    rng = np.random.default_rng(2)
    truth = aupr(rng.normal(size=200_000), rng.normal(1, 1, size=200_000)).value
    missed = 0
    for i in range(100):
        found = aupr(rng.normal(size=80), rng.normal(1, 1, size=80), level=0.9, resamples=200, generator=generator(i))
        missed += not found.low <= truth <= found.high
    assert missed <= binom.ppf(1 - 1e-7, 100, 0.1)
    assert aupr(INSIDE, OUTSIDE).low is None
    assert aupr(INSIDE, OUTSIDE, generator=generator()) == aupr(INSIDE, OUTSIDE, generator=generator())


def test_evaluate_counts_the_untested():
    metrics = evaluate(np.r_[INSIDE, np.nan], np.r_[np.nan, OUTSIDE, np.nan], generator=generator())
    assert (metrics.n_in, metrics.untested_in, metrics.n_out, metrics.untested_out) == (80, 1, 60, 2)
    assert metrics.auroc == auroc(INSIDE, OUTSIDE)
    assert metrics.fpr95.value == fpr_at(INSIDE, OUTSIDE).value
    assert metrics.as_dict()["aupr"]["interval"] == "bootstrap (1000)"
    tensors = evaluate(torch.from_numpy(INSIDE), torch.from_numpy(OUTSIDE))
    assert tensors.auroc == metrics.auroc


def test_clopper_pearson_by_its_definition():
    for count, total in ((0, 10), (3, 10), (10, 10), (7, 200)):
        found = clopper_pearson(count, total, level=0.9)
        if count:
            assert binom.sf(count - 1, total, found.low) == pytest.approx(0.05)
        if count < total:
            assert binom.cdf(count, total, found.high) == pytest.approx(0.05)
    assert (clopper_pearson(0, 0).low, clopper_pearson(0, 0).high) == (0, 1)
    assert str(clopper_pearson(1, 3)) == "0.3333 [0.008404, 0.9057]"


def test_decisions():
    p = np.array([0.001, 0.002, 0.003, 0.9, np.nan, 0.001])
    ood = [True, True, False, False, True, False]
    decision = decide(p, fdr=0.05)
    assert realised_fdr(decision, ood).value == 0.5
    assert power(decision, ood).value == pytest.approx(2 / 3)  # what could not be tested was not found
    assert false_alarm_rate(decision, ood).value == pytest.approx(2 / 3)
    assert realised_fdr(np.zeros(3, bool), [True, False, False]).value == 0
    tensors = realised_fdr(torch.tensor([True, False]), torch.tensor([False, True]))
    assert tensors.value == 1


def test_curves_pass_through_the_points():
    labels, scores = np.r_[np.zeros(80), np.ones(60)], np.r_[INSIDE, OUTSIDE]
    x, y, _ = roc_curve(labels, scores, drop_intermediate=False)
    curve = roc(INSIDE, OUTSIDE, generator=generator(), resamples=200)
    np.testing.assert_allclose(curve.y[1:], np.interp(curve.x[1:], x, y), atol=1e-12)
    assert (curve.low <= curve.y + 1e-9).all()
    assert (curve.high >= curve.y - 1e-9).all()
    precision, recall, _ = precision_recall_curve(labels, scores)
    found = precision_recall(INSIDE, OUTSIDE)
    assert found.low is None
    for at, value in zip(found.x, found.y, strict=True):
        reached = recall >= at - 1e-12
        assert value == pytest.approx(precision[reached][-1])


def test_prediction_metrics():
    labels = RNG.integers(3, size=50)
    p = RNG.dirichlet(np.ones(3), size=50)
    assert accuracy(labels, p).value == (p.argmax(1) == labels).mean()
    assert accuracy(labels, p.argmax(1)) == accuracy(labels, p)
    scores = []
    for c in range(3):
        hit = ((p.argmax(1) == c) & (labels == c)).sum()
        scores.append(2 * hit / ((p.argmax(1) == c).sum() + (labels == c).sum()))
    found = macro_f1(labels, p, generator=generator())
    assert found.value == pytest.approx(np.mean(scores))
    assert found.low < found.value < found.high
    expected = np.mean([((p[i] - np.eye(3)[labels[i]]) ** 2).sum() for i in range(50)])
    assert brier(labels, p).value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: auroc([], [1.0]), "auroc: scores_in"),
        (lambda: auroc([np.nan], [1.0]), "auroc: "),
        (lambda: auroc([1.0], [1.0], level=2), "auroc: level must be above 0 and below 1; got 2"),
        (lambda: clopper_pearson(3, 2), "clopper_pearson: needs 0 <= count <= total; got count=3, total=2"),
        (lambda: power([True], [True, False]), "power: decision and is_ood must be of one length; got 1 and 2"),
        (lambda: realised_fdr([0.3], [True]), "realised_fdr: decision must be true or false for each query"),
        (lambda: fpr_at([1.0], [1.0], tpr=0), "fpr_at: "),
        (lambda: accuracy([1, 2], [1]), "accuracy: "),
    ],
)
def test_wrong_calls(call, words):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
