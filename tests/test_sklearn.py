"""scikit-learn's own checks, and what the estimators add."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from arht.errors import InputError
from arht.evaluation import level_band
from arht.sklearn import ARHTOutlierDetector, MahalanobisOutlierDetector, RHTOutlierDetector

ESTIMATORS = [
    ARHTOutlierDetector(),
    ARHTOutlierDetector(ridge_unit="mean_eigenvalue", tail="two-sided"),
    ARHTOutlierDetector(ridge=None),
    RHTOutlierDetector(),
    MahalanobisOutlierDetector(),
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.parametrize("tail", ["upper", "two-sided"])
@pytest.mark.parametrize("reference", ["global", "class", "relative"])
def test_predict_is_the_pvalue_at_level(reference, tail):
    images, digits = load_digits(return_X_y=True)
    estimator = ARHTOutlierDetector(reference=reference, tail=tail, level=0.1, random_state=0)
    estimator.fit(images[:1200], digits[:1200])
    for batch in (images[1200:], images[:1200]):
        p = estimator.pvalues(batch)
        assert np.array_equal(estimator.predict(batch) == -1, p <= 0.1 + 1e-12)
    assert set(np.unique(estimator.predict(images[1200:]))) == {-1, 1}


def test_fdr_decides_about_the_rows_together():
    rng = np.random.default_rng(0)
    estimator = ARHTOutlierDetector(fdr=0.1, random_state=0).fit(rng.normal(size=(4000, 10)))
    batch = np.concatenate([rng.normal(size=(180, 10)), rng.normal(size=(20, 10)) + 4])
    labels = estimator.predict(batch)
    assert (labels[180:] == -1).all()
    assert np.array_equal(labels == -1, estimator.decide(batch).rejected)
    each = ARHTOutlierDetector(level=0.1, random_state=0).fit(rng.normal(size=(2000, 10)))
    low, high = level_band(0.1, 180, calibration=1000, outside=1e-6)
    assert low <= (each.predict(batch[:180]) == -1).sum() <= high
    assert (labels[:180] == -1).sum() < (each.predict(batch[:180]) == -1).sum()


def test_in_pipelines_grids_and_pickles():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 5)) * [1, 10, 100, 1, 1]
    pipeline = make_pipeline(StandardScaler(), ARHTOutlierDetector(random_state=0)).fit(X)
    far = np.full((1, 5), 900.0)
    assert pipeline.predict(far)[0] == -1
    again = pickle.loads(pickle.dumps(pipeline))
    assert np.array_equal(again.score_samples(X), pipeline.score_samples(X))
    grid = GridSearchCV(
        MahalanobisOutlierDetector(random_state=0),
        {"ridge": [0.1, 1.0]},
        scoring=lambda e, X: e.score_samples(X).mean(),
    )
    assert grid.fit(X).best_params_["ridge"] == 1.0


@pytest.mark.parametrize(
    ("estimator", "line"),
    [
        (ARHTOutlierDetector(level=0), "ARHTOutlierDetector: level must be above 0 and below 1; got 0."),
        (ARHTOutlierDetector(fdr=2), "ARHTOutlierDetector: fdr must be above 0 and below 1; got 2."),
        (RHTOutlierDetector(calibration=1), "RHTOutlierDetector: calibration must be above 0 and below 1; got 1."),
        (RHTOutlierDetector(reference="class"), "RHTOutlierDetector.fit: reference='class' needs y; got none."),
        (
            MahalanobisOutlierDetector(tail="lower"),
            "MahalanobisDetector: tail must be one of 'upper', 'two-sided'; got 'lower'.",
        ),
    ],
)
def test_wrong_parameters(estimator, line):
    with pytest.raises(InputError) as caught:
        estimator.fit(np.random.default_rng(0).normal(size=(30, 3)))
    assert str(caught.value) == line
