"""What a wrong call is told, word for word, where docs/errors.md does not say it already."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from arht import InputError, Moments, Reference, arht_scores, arht_test, rht_test
from arht.stats import nulls
from arht.stats.permutation import permutation_pvalue

X = np.random.default_rng(0).standard_normal((12, 3))
Y = X[:5] + 1
REFERENCE = Reference.of(X)
BAD = np.where(np.arange(36).reshape(12, 3) == 7, np.nan, X)


@dataclass(frozen=True)
class Unknown(nulls.NullLaw):
    """A law that is neither of the kinds known."""

    guarantee = "none"


CALLS = {
    "three axes": (
        lambda: arht_test(np.zeros((2, 3, 4)), Y),
        "arht_test: x must be a table [n, P]; got 3 axes, shape (2, 3, 4). "
        "Reshape it so that each row is one observation.",
    ),
    "ragged": (
        lambda: arht_test([[1.0, 2.0], [3.0]], Y),
        "arht_test: x must be a rectangular array; got rows of different lengths. Pad or cut them to one width.",
    ),
    "complex tensor": (
        lambda: arht_test(torch.zeros(3, 3, dtype=torch.complex64)),
        "arht_test: x must be real; got dtype complex64. "
        "Take the real part, or stack real and imaginary parts as columns.",
    ),
    "no priors": (
        lambda: arht_test(X, Y, priors=()),
        "arht_test: priors must hold at least one vector of weights; got none. Try (0, 1, 0).",
    ),
    "a prior that is no vector": (
        lambda: arht_test(X, Y, priors=([[1, 0], [0, 1]],)),
        "arht_test: each prior must be a vector of weights; got [[1, 0], [0, 1]]. Try (0, 1, 0).",
    ),
    "a prior below zero": (
        lambda: arht_test(X, Y, priors=(0, -1, 2)),
        "arht_test: a prior's weights must be finite, not negative and not all zero; got (0, -1, 2). "
        "They are the weights of I, Σ, Σ², ... in the covariance of the mean difference.",
    ),
    "a prior of nothing": (
        lambda: arht_scores(X, REFERENCE, priors=(0, 0, 0)),
        "arht_scores: a prior's weights must be finite, not negative and not all zero; got (0, 0, 0). "
        "They are the weights of I, Σ, Σ², ... in the covariance of the mean difference.",
    ),
    "no ridges": (
        lambda: arht_test(X, Y, ridges=[]),
        "arht_test: ridges must be a list of at least one number; got shape (0,). Leave it out for the default grid.",
    ),
    "a NaN ridge": (
        lambda: arht_scores(X, REFERENCE, ridges=[1.0, np.nan]),
        "arht_scores: ridge must be a positive finite number; got nan. "
        "A ridge of zero is hotelling_test; choose for instance 0.01 times the mean eigenvalue.",
    ),
    "several ridges": (
        lambda: rht_test(X, Y, ridge=[0.1, 1.0]),
        "rht_test: ridge must be one number; got 2 of them. arht_test chooses among several ridges.",
    ),
    "mean of another width": (
        lambda: rht_test(X, ridge=1.0, mean=[1.0, 2.0]),
        "rht_test: mean must be one number or a vector of the data's width P=3; got shape (2,). "
        "Give one entry per column.",
    ),
    "mean not finite": (
        lambda: rht_test(X, ridge=1.0, mean=np.inf),
        "rht_test: mean must be finite; got NaN or infinite entries. Give numbers.",
    ),
    "draws of one axis": (
        lambda: arht_scores(X[0], REFERENCE),
        "arht_scores: draws must be [B, K, P] (or [B, P] for one draw a query); got shape (3,). "
        "Stack the draws of each query along the second axis.",
    ),
    "no draws": (
        lambda: arht_scores(np.zeros((4, 0, 3)), REFERENCE),
        "arht_scores: draws must be [B, K, P] (or [B, P] for one draw a query); got shape (4, 0, 3). "
        "Stack the draws of each query along the second axis.",
    ),
    "draws of another width": (
        lambda: arht_scores(np.zeros((4, 2, 5)), REFERENCE),
        "arht_scores: draws must be as wide as the reference, P=3; got P=5. "
        "They are not embeddings of the layer the reference was fitted on.",
    ),
    "a permutation of queries": (
        lambda: arht_scores(X, REFERENCE, null=nulls.Permutation(99)),
        "arht_scores: null must be an asymptotic law or Conformal; got Permutation(count=99). "
        "A permutation needs the reference's rows: use arht_test on them.",
    ),
    "an unknown law, rht": (
        lambda: rht_test(X, Y, ridge=1.0, null=Unknown()),
        "rht_test: the law Unknown() does not say how to compute a p-value of RHT.",
    ),
    "an unknown law, arht": (
        lambda: arht_test(X, Y, null=Unknown()),
        "arht_test: the law Unknown() does not say how to compute a p-value of ARHT.",
    ),
    "shared components of two": (
        lambda: arht_test(X, Y, priors=((1, 0), (0, 1)), null=nulls.ChiSquare(joint="shared")),
        'ChiSquare: joint="shared" is defined for three priors; got 2. Use joint="copula".',
    ),
    "long priors, permuted": (
        lambda: arht_test(X, Y, priors=(0, 0, 0, 1), null="permutation"),
        "arht_test: the permutation null takes priors of up to three weights (I, Σ, Σ²); got one of 4. "
        "Shorten the prior or use an asymptotic null.",
    ),
    "no permutations": (
        lambda: nulls.Permutation(0),
        "Permutation: count must be a whole number >= 1; got 0. For decisions at 5 % take 999 or more.",
    ),
    "half a permutation": (
        lambda: nulls.Permutation(9.5),
        "Permutation: count must be a whole number >= 1; got 9.5. For decisions at 5 % take 999 or more.",
    ),
    "equal rows, permuted": (
        lambda: permutation_pvalue(
            *(torch.zeros(n, 2, dtype=torch.float64) for n in (3, 2)),
            torch.zeros(2, dtype=torch.float64),
            torch.ones(1, dtype=torch.float64),
            nulls.Permutation(9),
            lambda spectra: spectra.trace,
        ),
        "permutation: all rows are equal, so every relabelling gives the same statistic. Check the input.",
    ),
    "no calibration scores": (
        lambda: nulls.Conformal([]),
        "Conformal: needs at least one calibration score, all finite; got n=0 with 0 not finite. "
        "Score held-out in-distribution data first.",
    ),
    "NaN among the calibration scores": (
        lambda: nulls.Conformal([1.0, np.nan, np.inf]),
        "Conformal: needs at least one calibration score, all finite; got n=3 with 2 not finite. "
        "Score held-out in-distribution data first.",
    ),
    "an unknown tail": (
        lambda: nulls.Conformal([1.0], tail="lower"),
        "Conformal: tail must be upper or two_sided; got 'lower'. Choose one of these.",
    ),
    "moments of nothing": (
        lambda: Moments.of(X[:0]),
        "Moments.of: x must be rows [n, P] with n >= 1 and P >= 1; got shape (0, 3). "
        "There is nothing to average; check the selection that produced it.",
    ),
    "moments of a number": (
        lambda: Moments.of(3.0),
        "Moments.of: x must be rows [n, P] with n >= 1 and P >= 1; got shape (). "
        "There is nothing to average; check the selection that produced it.",
    ),
    "moments of NaN": (
        lambda: Moments.of(BAD),
        "Moments.of: x must be finite; got NaN or infinite values, the first in row 2, column 1. "
        "Drop or impute those rows.",
    ),
    "no chunks": (
        lambda: Moments.stream([]),
        "Moments.stream: needs at least one chunk of rows; got none. Check the iterable: a generator that "
        "was read once is empty the second time.",
    ),
    "labels of another length": (
        lambda: Moments.grouped(X, [0, 1]),
        "Moments.grouped: needs one label per row of x [n, P]; got x (12, 3) and labels (2,). Give labels [n].",
    ),
    "labels that are no integers": (
        lambda: Moments.grouped(X, X[:, 0]),
        "Moments.grouped: labels must be integers; got float64. Encode the classes as 0, 1, 2, ...",
    ),
    "no groups": (
        lambda: Moments.within([]),
        "Moments.within: needs at least one group; got none. Group some rows first.",
    ),
    "covariance of one row": (
        lambda: Moments.of(X[:1]).covariance,
        "Moments.covariance: needs n >= 2 rows; got n=1. No covariance can be estimated; give more rows.",
    ),
    "merge of two widths": (
        lambda: Moments.of(X).merge(Moments.of(X[:, :2])),
        "Moments.merge: both sides must have the same number of columns; got P=3 and P=2. "
        "They are not moments of one layer.",
    ),
    "stream of two widths": (
        lambda: Moments.stream([X, X[:, :2]]),
        "Moments.merge: both sides must have the same number of columns; got P=3 and P=2. "
        "They are not moments of one layer.",
    ),
    "subtract what is not there": (
        lambda: Moments.of(X[:3]).subtract(Moments.of(X)),
        "Moments.subtract: cannot take n=12 rows from n=3. Only rows that were merged in can be taken out.",
    ),
    "reference of one row": (
        lambda: Reference.of(X[:1]),
        "Reference.of: needs at least 2 rows; got n=1. No covariance can be estimated; give more rows.",
    ),
    "reference of equal rows": (
        lambda: Reference.of(np.ones((9, 3))),
        "Reference.of: every column is constant within the reference. "
        "The covariance is zero, so there is no scale to compare with; check the input.",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_one_line(name):
    call, line = CALLS[name]
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
        call()
