"""The measures on predictive draws against scipy, and where they are exactly known."""

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from scipy.stats import dirichlet, entropy

from arht.detectors import DifferentialEntropy, Energy, Entropy, MaximumProbability, MutualInformation
from arht.errors import InputError

LOGITS = 2 * np.random.default_rng(0).normal(size=(20, 6, 4))
P = softmax(LOGITS, axis=2)


def test_against_scipy():
    mean = P.mean(1)
    np.testing.assert_allclose(MaximumProbability().score(P), 1 - mean.max(1))
    np.testing.assert_allclose(Entropy().score(P), entropy(mean, axis=1))
    np.testing.assert_allclose(
        MutualInformation().score(P), entropy(mean, axis=1) - entropy(P, axis=2).mean(1), atol=1e-12
    )
    np.testing.assert_allclose(Energy(2.0).score(LOGITS), (-2 * logsumexp(LOGITS / 2, axis=2)).mean(1))
    concentration = np.exp(LOGITS)
    expected = [[dirichlet(a).entropy() for a in draws] for draws in concentration]
    np.testing.assert_allclose(DifferentialEntropy().score(concentration), np.mean(expected, 1), rtol=1e-8)


@pytest.mark.parametrize("measure", [MaximumProbability, Entropy, MutualInformation])
def test_logits_are_softmaxed(measure):
    np.testing.assert_allclose(measure("logits").score(LOGITS), measure().score(P), atol=1e-12)


def test_where_they_are_known():
    sure, flat = np.eye(4)[None, :1], np.full((1, 1, 4), 0.25)
    assert MaximumProbability().score(sure)[0] == 0
    assert MaximumProbability().score(flat)[0] == 0.75
    assert Entropy().score(sure)[0] == 0
    np.testing.assert_allclose(Entropy().score(flat), np.log(4))
    assert MutualInformation().score(flat)[0] == 0
    disagree = np.eye(4)[None]  # four draws, each sure of another class
    np.testing.assert_allclose(MutualInformation().score(disagree), np.log(4))
    np.testing.assert_allclose(DifferentialEntropy().score(np.ones((1, 1, 3))), -np.log(2))  # uniform on the simplex


def test_the_matched_dirichlet_is_found_again():
    """20,000 draws of a Dirichlet give its entropy back."""
    rng = np.random.default_rng(0)
    for a in ([2.0, 3.0, 4.0], [20.0, 1.0, 5.0]):
        draws = rng.dirichlet(a, size=(1, 20_000))
        found = DifferentialEntropy("probabilities").score(draws)[0]
        assert found == pytest.approx(dirichlet(a).entropy(), abs=0.06)


def test_single_prediction_is_one_draw():
    np.testing.assert_array_equal(Entropy().score(P[:, 0]), Entropy().score(P[:, :1]))


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda: Entropy().score(LOGITS),
            "Entropy: draws must be probabilities [B, K, C]; got values in row 0 that are not",
        ),
        (
            lambda: DifferentialEntropy().score(LOGITS),
            "DifferentialEntropy: draws must be positive concentrations [B, K, C]; got values in row 0",
        ),
        (lambda: DifferentialEntropy("probabilities").score(P[:, :1]), "a Dirichlet is matched to K >= 2 draws"),
        (lambda: Entropy("scores"), "Entropy: inputs must be one of 'probabilities', 'logits'; got 'scores'."),
        (lambda: Energy(0), "Energy: temperature must be a positive finite number; got 0."),
        (lambda: Entropy().explain(P), "a score of entropy has no directions to share it out over"),
        (lambda: Entropy().decide(P), "needs p-values with a guarantee; got scores of entropy alone"),
    ],
)
def test_wrong_calls(call, line):
    with pytest.raises(InputError) as caught:
        call()
    assert line in str(caught.value)
