"""Every value of the CRAN package ARHT: on the fixture always, on the whole set where it lies beside the repository."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom

import arht
from arht.stats import nulls
from arht.stats.spectrum import Spectrum, population_moments
from tests.reference import dense

ROOT = Path(__file__).parents[2]
PLACES = ROOT / "tests" / "fixtures", ROOT.parent / "shared" / "oracle"
FOLDERS = [folder for folder in PLACES if (folder / "inputs.npz").exists()]
PRIORS = {
    "default": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "theta1_only": (0, 1, 0),
    "given_range": ((1, 0, 0), (0, 1, 0)),
}
LAWS = {"none": "normal", "cube_root": "cube_root", "sqrt": "square_root"}
DRAWS = 200_000
# With 112 composite p-values in the whole set, a reference drawn anew would be refused once in a million times
# (two-sided, Bonferroni); an error of nine standard errors, 0.01 at p = 0.5, would pass once in a thousand.
LIMIT = 1e-6 / 112 / 2
# 1e-7 is asked of all; Θ₂ and what follows from it cancel in the package, the others do not
RTOL = {"RHT_opt_lambda": 1e-13, "Theta1": 1e-11, "Theta2": 1e-8, "RHT_std": 1e-8, "Corr_RHT": 1e-8}


@cache
def read(folder):
    """Inputs and results of a folder."""
    with np.load(folder / "inputs.npz") as file:
        inputs = dict(file)
    return inputs, json.loads((folder / "arht_cran.json").read_text(encoding="utf-8"))["results"]


CALLS = [
    pytest.param(folder, result, id="-".join((folder.name, result["case"], result["config"], result["calibration"])))
    for folder in FOLDERS
    for result in read(folder)[1]
]


def run(folder, call):
    inputs, config = read(folder)[0], call["config"]
    law = LAWS.get(call["calibration"])
    if law is None:
        law = nulls.ChiSquare(degrees="ceiling", joint="shared" if config == "default" else "copula")
    x, y = inputs[f"{call['case']}_X"], inputs.get(f"{call['case']}_Y")
    ridges = np.logspace(-2, 1, 60) if config == "given_range" else None
    return arht.arht_test(x, y, priors=PRIORS[config], null=law, ridges=ridges), x.shape[1]


@pytest.mark.parametrize(("folder", "call"), CALLS)
def test_deterministic_values(folder, call):
    result, _ = run(folder, call)
    found = {
        "RHT_opt_lambda": result.priors.ridge,
        "Theta1": result.priors.theta1,
        "Theta2": result.priors.theta2,
        "RHT_std": result.priors.statistic,
        "Corr_RHT": result.priors.correlation.ravel(),
    }
    for name, values in found.items():
        np.testing.assert_allclose(values, call[name], rtol=RTOL[name], err_msg=name)
    # there a p-value is 1 minus a distribution function: 2e-16 at best, however small it is
    np.testing.assert_allclose(result.priors.pvalue, call["RHT_pvalue"], rtol=1e-7, atol=2e-16)
    if call["config"] == "theta1_only":
        np.testing.assert_allclose(result.pvalue, call["ARHT_pvalue"][0], rtol=1e-7, atol=2e-16)


COMPOSITE = [
    call
    for call in CALLS
    if call.values[1]["config"] != "theta1_only" and np.isfinite(call.values[1]["ARHT_pvalue"][0])
]


@pytest.mark.parametrize(("folder", "call"), COMPOSITE)
def test_composite_pvalues(folder, call):
    result, dimension = run(folder, call)
    readings = [(result.pvalue, result.pvalue_error)]
    if call["calibration"] == "chi_sq":
        readings.append(other_reading(result, dimension))
    count = round(call["ARHT_pvalue"][0] * DRAWS)
    tails = [
        min(binom.sf(count - 1, DRAWS, min(1, p * (1 + error))), binom.cdf(count, DRAWS, p * (1 - error)))
        for p, error in readings
    ]
    assert max(tails) > LIMIT, (call["ARHT_pvalue"], readings)


def other_reading(result, dimension):
    """The p-value with ⌊ρ√(dᵢdⱼ)⌋ taken just below whole numbers.

    Where two priors choose one ridge, ρ is 1 up to rounding and the package's floor falls on either side of a whole
    number by chance, so either reading may be the package's.
    """
    theta1, theta2 = torch.as_tensor(result.priors.theta1), torch.as_tensor(result.priors.theta2)
    exact = dimension * theta1.square() / theta2
    bounds = exact + result.statistic * (2 * exact).sqrt()
    value, error = nulls._shared_components(
        bounds, exact.ceil(), torch.as_tensor(result.priors.correlation), slack=-1e-9
    )
    return float(value), float(error)


@pytest.mark.parametrize("case", ["case00", "case01", "case19", "case22"])
def test_the_twin_agrees_too(case):
    inputs, results = read(FOLDERS[0])
    call = next(r for r in results if (r["case"], r["config"], r["calibration"]) == (case, "default", "none"))
    x, y = inputs[f"{case}_X"], inputs.get(f"{case}_Y")
    for i, prior in enumerate(PRIORS["default"]):
        twin = dense.arht(x, y, dense.default_ridges(x, y), prior)
        found = twin.ridge, twin.theta1, twin.theta2, twin.standardised
        expected = [call[name][i] for name in ("RHT_opt_lambda", "Theta1", "Theta2", "RHT_std")]
        np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_population_moments(folder):
    oracle = json.loads((folder / "spectral_moments_cran.json").read_text(encoding="utf-8"))
    eigenvalues = torch.tensor(oracle["eigenvalues"], dtype=torch.float64)
    spectrum = Spectrum(eigenvalues, len(eigenvalues), oracle["degrees_of_freedom"])
    moments = population_moments(spectrum.power_sums(4), spectrum.ratio)
    np.testing.assert_allclose(moments, oracle["moments"], rtol=1e-12)
