"""Breaks the library on purpose, one line at a time, and sees that a test notices.

    python -m tests.mutants               every mutant; exit code 1 if one survives
    python -m tests.mutants correlation   those whose description or file contains the word

Each mutant is one change of one line in a copy of ``src``; the work tree is not touched. The test it names runs
against that copy and must fail. First, all named tests run on an unchanged copy, and must pass there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent.parent
AT_A_TIME = 2
PATIENCE = 900  # seconds for one mutant, or for all named tests on the unchanged copy


@dataclass(frozen=True)
class Mutant:
    """In `file` (below src/arht/stats), `old` becomes `new`; of `tests` (below tests/stats), at least one fails."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def in_file(file: str, *changes: tuple[str, str, str, str]) -> Iterator[Mutant]:
    for what, old, new, tests in changes:
        yield Mutant(what, file, old, new, tuple(tests.split()))


MUTANTS = [
    *in_file(
        "pooled.py",
        (
            "n for n - 2",
            "centre - other - mean, n1 + n2 - 2,",
            "centre - other - mean, n1 + n2,",
            "test_hotelling.py::test_two_samples_equal_the_twin",
        ),
        (
            "n for n - 1, one sample",
            "centre - mean, n1 - 1, float(n1)",
            "centre - mean, n1, float(n1)",
            "test_rht.py::test_one_sample_equals_the_twin",
        ),
        (
            "sign of the hypothesised mean",
            "centre - other - mean, n1",
            "centre - other + mean, n1",
            "test_hotelling.py::test_two_samples_equal_the_twin",
        ),
        (
            "harmonic size: n1 n2 / (n1 + n2) without n2",
            "n1 * n2 / (n1 + n2)\n\n",
            "n1 / (n1 + n2)\n\n",
            "test_rht.py::test_two_samples_equal_the_twin",
        ),
        (
            "the covariance taken as diagonal: no rotation",
            "along = basis @ difference",
            "along = difference[:keep]",
            "test_rht.py::test_two_samples_equal_the_twin",
        ),
        (
            "the difference outside the span of S forgotten",
            "return within + self.remainder / ridges",
            "return within",
            "test_rht.py::test_two_samples_equal_the_twin",
        ),
    ),
    *in_file(
        "hotelling.py",
        (
            "diagonal of S for S",
            'torch.linalg.qr(rows / (scale * degrees**0.5), mode="r").R',
            "torch.eye(width, dtype=torch.float64)",
            "test_hotelling.py::test_two_samples_equal_the_twin",
        ),
        (
            "denominator degrees of F: ν - P for ν - P + 1",
            "t2 * (degrees - width + 1) /",
            "t2 * (degrees - width) /",
            "test_hotelling.py::test_one_column_is_the_t_test",
        ),
    ),
    *in_file(
        "spectrum.py",
        (
            "x³ for x⁴ in Θ₂",
            "squares / (self.dimension * x**4)",
            "squares / (self.dimension * x**3)",
            "test_spectrum.py::test_thetas_are_the_printed_formulas",
        ),
        (
            "Θ₂ without the ν - P entries that are one",
            " + ones * (1 - x).square()",
            "",
            "test_spectrum.py::test_thetas_are_the_printed_formulas",
        ),
        (
            "sign in Θ₂ from sums",
            "(shrunk2 - shrunk.square() / degrees)",
            "(shrunk2 + shrunk.square() / degrees)",
            "test_spectrum.py::test_thetas_from_sums",
        ),
        (
            "correlation without the ν - P entries that are one",
            " + rest[..., :, None] * rest[..., None, :]",
            "",
            "test_spectrum.py::test_correlation_is_the_mixed_theta2",
        ),
        (
            "Stieltjes transform without the zero eigenvalues",
            "(inverse + zeros / ridges)",
            "inverse",
            "test_spectrum.py::test_prior_scores_are_q_up_to_a_constant",
        ),
        (
            "sample moments for population moments",
            "moments[..., k - 1] - known",
            "moments[..., k - 1]",
            "test_spectrum.py::test_population_moments_undo_the_sample_bias",
        ),
        (
            "sign in the recursion of ρ",
            "moments[..., k - 1, None] - ridges * rho[k]",
            "moments[..., k - 1, None] + ridges * rho[k]",
            "test_spectrum.py::test_prior_scores_are_q_up_to_a_constant",
        ),
        (
            "Q divided by Θ₂, not by its root",
            "/ (2 * ratio * theta2).sqrt()[..., None, :]",
            "/ (2 * ratio * theta2)[..., None, :]",
            "test_spectrum.py::test_prior_scores_are_q_up_to_a_constant",
        ),
    ),
    *in_file(
        "adaptive.py",
        (
            "the worst ridge for the best",
            "best = q.argmax(-1)\n",
            "best = q.argmin(-1)\n",
            "test_arht.py::test_one_prior_equals_the_twin",
        ),
        (
            "the smallest prior wins",
            "largest, winner = standard.max(-1)",
            "largest, winner = standard.min(-1)",
            "test_arht.py::test_several_priors_are_each_their_own_test_and_the_largest_wins",
        ),
        (
            "priors taken for uncorrelated",
            "correlation = spectrum.correlation(chosen)",
            "correlation = torch.eye(len(chosen), dtype=torch.float64)",
            "test_oracle.py::test_composite_pvalues",
        ),
        (
            "the largest of several priors judged as one",
            "pvalue, relative = law.composite(largest, theta1, theta2, width, correlation)",
            "pvalue, relative = law.single(rht, theta1, theta2, width)[winner], 0.0",
            "test_oracle.py::test_composite_pvalues",
        ),
        (
            "relabellings keep the observed ridge's prior order: smallest wins",
            "q.argmax(-1)).amax(-1)",
            "q.argmax(-1)).amin(-1)",
            "test_permutation.py::test_all_relabellings_equal_the_loop",
        ),
    ),
    *in_file(
        "nulls.py",
        (
            "half the variance forgotten",
            "(rht / dimension - theta1) / (2 * theta2).sqrt()",
            "(rht / dimension - theta1) / theta2.sqrt()",
            "test_rht.py::test_two_samples_equal_the_twin test_rht.py::test_each_law_gives_its_own_pvalue",
        ),
        (
            "exponent of the delta method",
            "theta1.pow(2 / 3)",
            "theta1.pow(1 / 3)",
            "test_rht.py::test_two_samples_equal_the_twin test_rht.py::test_each_law_gives_its_own_pvalue",
        ),
        (
            "lower tail for upper",
            "return normal_sf(self.standardise(",
            "return normal_sf(-self.standardise(",
            "test_rht.py::test_each_law_gives_its_own_pvalue",
        ),
        (
            "χ² matched in mean, not in variance",
            "exact = dimension * theta1.square() / theta2",
            "exact = dimension * theta1",
            "test_rht.py::test_each_law_gives_its_own_pvalue",
        ),
        (
            "conformal without the query itself",
            "p = (1.0 + above.to(torch.float64)) / (n + 1)",
            "p = above.to(torch.float64) / n",
            "test_nulls.py::test_conformal_by_hand",
        ),
        (
            "ties counted for the query",
            'searchsorted(table, flat, side="left")',
            'searchsorted(table, flat, side="right")',
            "test_nulls.py::test_conformal_by_hand",
        ),
    ),
    *in_file(
        "maximum.py",
        (
            "overlap of the events counted twice",
            "(density * inside * w)",
            "(density * w)",
            "test_maximum.py::test_two_by_owens_t",
        ),
    ),
    *in_file(
        "permutation.py",
        (
            "the observed labelling forgotten",
            "return (1 + reached) / (1 + total)",
            "return reached / total",
            "test_permutation.py::test_random_ones_are_reproducible_and_counted",
        ),
        (
            "the covariance not made again for a relabelling",
            "left = (1 - s1).clamp_min(1e-300)",
            "left = torch.ones_like(s1)",
            "test_permutation.py::test_all_relabellings_equal_the_loop",
        ),
    ),
    *in_file(
        "moments.py",
        (
            "merge forgets the variance between the parts",
            "        self.scatter.addr_(delta, delta, alpha=self.n * other.n / n)\n",
            "",
            "test_moments.py::test_any_chunks_in_any_order",
        ),
        (
            "blocks forget the variance between them",
            "                scatter.addr_(delta, delta, alpha=n * m / (n + m))\n",
            "",
            "test_moments.py::test_blocks_within_one_array",
        ),
        (
            "sign in subtract",
            "alpha=-n * other.n / self.n",
            "alpha=n * other.n / self.n",
            "test_moments.py::test_subtract_undoes_merge",
        ),
        (
            "n for n - 1 in the covariance",
            "return self.scatter / (self.n - 1)",
            "return self.scatter / self.n",
            "test_moments.py::test_of_rows_is_numpy",
        ),
    ),
    *in_file(
        "scoring.py",
        (
            "n for n - 2, batched",
            "self.degrees = reference.n + draws - 2",
            "self.degrees = reference.n + draws",
            "test_scoring.py::test_it_is_the_two_sample_test",
        ),
        (
            "the remainder bound ignored",
            "(best == index) & (sums.bound <= TOLERANCE)",
            "(best == index)",
            "test_perturbation.py::test_the_bound_chooses_the_exact_way",
        ),
        (
            "one order less always taken to be enough",
            "rest = ((sums.bound > TOLERANCE) & torch.isfinite(sums.bound)).nonzero()[:, 0]",
            "rest = sums.bound.new_zeros(0)",
            "test_perturbation.py::test_one_order_more_only_where_it_is_needed",
        ),
        (
            "a query with NaN not marked",
            "found.outcome[~finite] = int(Outcome.NOT_FINITE)",
            "pass",
            "test_scoring.py::test_a_bad_query_is_marked_and_its_neighbours_are_bit_identical",
        ),
    ),
    *in_file(
        "perturbation.py",
        (
            "sign of the second-order term, K < P",
            "shrunk = self.base + tr1 - g_1 + gg_1",
            "shrunk = self.base + tr1 + g_1 + gg_1",
            "test_perturbation.py::test_no_error_exceeds_its_bound",
        ),
        (
            "second-order term left out, K > P",
            "shrunk = self.base + tr1 - e2_1 * most1",
            "shrunk = self.base + tr1",
            "test_perturbation.py::test_no_error_exceeds_its_bound",
        ),
        (
            "what one order less leaves open not in the bound, K < P",
            "tail2 = tail2 + (high - low) + one_one",
            "tail2 = tail2 + one_one",
            "test_perturbation.py::test_no_error_exceeds_its_bound",
        ),
        (
            "range of the second order at one end, K < P",
            "low = least * (1 - self.highest) * g_1",
            "low = high = g_1",
            "test_perturbation.py::test_no_error_exceeds_its_bound",
        ),
        (
            "what the rotation loses not in the bound",
            "(tr1 * self.h_size).sqrt() + lost.square() * self.h_size",
            "(tr1 * self.h_size).sqrt()",
            "test_perturbation.py::test_draws_whose_differences_the_rotation_loses",
        ),
        (
            "rounding of either sign divided by",
            "clamp_min(1e-300)).clamp(max=largest)",
            "clamp_min(1e-300))",
            "test_perturbation.py::test_draws_that_are_all_alike",
        ),
        (
            "draws not taken about their own mean",
            "white.sub_(mean[:, None])",
            "white.sub_(0.0)",
            "test_perturbation.py::test_no_error_exceeds_its_bound",
        ),
        (
            "rounding of the mean difference not in the bound, K < P",
            "2 * (lost * root * bb.sqrt() + shift) * xx.sqrt()",
            "2 * (lost * root * bb.sqrt()) * xx.sqrt()",
            "test_perturbation.py::test_a_query_whose_mean_is_all_but_the_references",
        ),
        (
            "rounding of the mean difference not in the bound, K >= P",
            "tail_form = tail_form + 2 * shift * xx.sqrt()",
            "tail_form = tail_form + 0 * shift",
            "test_perturbation.py::test_a_query_whose_mean_is_all_but_the_references",
        ),
        (
            "the bound on the largest eigenvalue halved",
            "return ((size @ v[:, :, None])[:, :, 0] / v.clamp_min(1e-30)).amax(1)",
            "return 0.5 * ((size @ v[:, :, None])[:, :, 0] / v.clamp_min(1e-30)).amax(1)",
            "test_perturbation.py::test_the_radius_is_no_smaller_than_the_largest_eigenvalue",
        ),
        (
            "products of bfloat16 taken for float32",
            "return torch.float32 if whole else torch.float64",
            "return torch.float32",
            "test_perturbation.py::test_less_than_float32_is_not_used_for_products",
        ),
    ),
    *in_file(
        "multiplicity.py",
        (
            "BY without its harmonic number",
            '_step_up(p, "by"))',
            '_step_up(p, "bh"))',
            "test_multiplicity.py::test_rejections_equal_the_papers_rule",
        ),
        (
            "Storey's share of true nulls without its 1",
            "(1 + np.count_nonzero(p > threshold))",
            "np.count_nonzero(p > threshold)",
            "test_multiplicity.py::test_adjusted_equals_the_loop",
        ),
        (
            "a tie with the bound not rejected",
            "rejected = adjusted <= fdr",
            "rejected = adjusted < fdr",
            "test_multiplicity.py::test_an_exact_tie_with_the_bound_is_a_rejection",
        ),
    ),
    *in_file(
        "combination.py",
        (
            "Bonferroni without its factor",
            "lambda p: p.shape[-1] * p.min(-1)",
            "lambda p: p.min(-1)",
            "test_combination.py::test_bonferroni_equals_the_loop",
        ),
        (
            "Stouffer's sum divided by L, not by its root",
            "total / np.sqrt((w**2).sum())",
            "total / (w**2).sum()",
            "test_combination.py::test_stouffer_and_cauchy_equal_the_loops",
        ),
    ),
]


def fault_of(mutant: Mutant) -> str | None:
    """Why the mutant cannot be made, if it cannot."""
    path = ROOT / "src" / "arht" / "stats" / mutant.file
    count = path.read_text(encoding="utf-8").count(mutant.old) if path.exists() else 0
    return None if count == 1 else f"its old text occurs {count} times, not once"


def outcome(tests: tuple[str, ...], mutant: Mutant | None = None) -> tuple[int, str]:
    """Exit code and output of pytest on a copy of src, with the mutant in it if there is one."""
    with tempfile.TemporaryDirectory(prefix="arht-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        if mutant is not None:
            path = source / "arht" / "stats" / mutant.file
            path.write_text(path.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        options = ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *(f"tests/stats/{test}" for test in tests)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    return done.returncode, done.stdout + done.stderr


def verdict(mutant: Mutant) -> str:
    """killed, or what is wrong: it survived, or it could not be tried."""
    if fault := fault_of(mutant):
        return f"STALE: {fault}"
    try:
        code, text = outcome(mutant.tests, mutant)
    except subprocess.TimeoutExpired:
        return f"NOT TRIED: its tests took more than {PATIENCE} s"
    if code == 1:
        return "killed"
    return "SURVIVED" if code == 0 else f"NOT TRIED: pytest's exit code is {code}: {text.strip().splitlines()[-1]}"


def main(words: list[str]) -> int:
    began = time.monotonic()
    chosen = [m for m in MUTANTS if not words or any(word in f"{m.what} {m.file}" for word in words)]
    if not chosen:
        print(f"mutants: no mutant matches {' '.join(words)}", file=sys.stderr)
        return 2
    tests = tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        unchanged = pool.submit(outcome, tests)
        verdicts = list(pool.map(verdict, chosen))
        code, text = unchanged.result()
    width = max(len(mutant.what) for mutant in chosen)
    for file, group in groupby(zip(chosen, verdicts, strict=True), key=lambda pair: pair[0].file):
        print(f"\n{file}")
        for mutant, found in group:
            print(f"  {mutant.what:<{width}}  {found:<8}  {', '.join(mutant.tests)}")
    killed = verdicts.count("killed")
    print(f"\n{killed} of {len(chosen)} killed, in {time.monotonic() - began:.0f} s")
    if code:
        print(f"the named tests must pass on the unchanged library; they did not:\n{text}", file=sys.stderr)
    return int(killed < len(chosen) or code != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
