"""A guard around a trained encoder: verdicts, files, what it is given, what it explains."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import betabinom, kstest

import arht
import arht.guard.guard as module
from arht.detectors import ARHTDetector, Energy, FromScorer, MahalanobisDetector, RHTDetector
from arht.errors import InputError
from arht.evaluation import auroc
from arht.stats.results import Outcome
from tests.commands.files import ENVIRONMENT

pytestmark = pytest.mark.filterwarnings("ignore::arht.errors.ResolutionWarning")


def same(a, b):
    for name in ("score", "pvalue", "outcome"):
        assert np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True), name
    for name in a.layers or {}:
        assert np.array_equal(a.layers[name].score, b.layers[name].score, equal_nan=True), name


# what it finds ------------------------------------------------------------------------------------------------


def test_auto_mode_ranks_what_is_no_known_digit_higher(auto, paper, parts):
    """By chance an AUROC exceeds 0.8 among 293 and 208 once in 1e28; a guard of AUROC 0.9 stays below once in 1e4."""
    result = auto.test(parts.queries)
    kinds = parts.kinds.numpy()
    for kind in (1, 2):
        assert auroc(result.score[kinds == 0], result.score[kinds == kind]).value > 0.8
    # the photographs are found by shallow layers: their p-values are the smallest there is
    assert (result.pvalue[kinds == 2] == result.smallest_pvalue).mean() > 0.9


def test_pvalues_of_held_out_digits_are_valid(guard, parts):
    """#{p <= level} of 443 held-out digits is beta-binomial given n calibration inputs.

    Each bound is passed by chance once in 10,000 (the run is fixed by its seeds); a guard whose p-values are halves of
    valid ones passes it with probability 0.1 or less at the level 0.2.
    """
    held = torch.cat([parts.audit.pixels, parts.queries.pixels[parts.kinds == 0]])
    pvalue = guard.test(held).pvalue.numpy()
    n = len(guard._law.scores)
    for level in (0.01, 0.05, 0.1, 0.2, 0.5):
        k = int(level * (n + 1) + 1e-9)
        assert (pvalue <= level).sum() <= betabinom(len(held), k, n + 1 - k).ppf(1 - 1e-4)
    assert kstest(pvalue, "uniform", alternative="greater").pvalue > 1e-6  # loose: the calibration set is shared
    assert guard.audit(held, fdr=0.2, tests=50).passed


def test_decisions_and_their_rate(auto, parts):
    decision = auto.decide(parts.queries, fdr=0.1)
    by = auto.decide(parts.queries, fdr=0.1, method="by")
    kinds = parts.kinds.numpy()
    assert decision.rejected[kinds == 2].mean() > 0.9
    assert set(np.flatnonzero(by.rejected)) <= set(np.flatnonzero(decision.rejected))
    assert np.array_equal(decision.rejected, auto.test(parts.queries).decide(fdr=0.1).rejected)


def test_without_calibration_in_the_tail_the_verdict_is_that_of_ranks(own, parts):
    result = own.test(parts.queries)
    n = len(own._law.scores)
    assert result.guarantee == "conformal"
    assert result.smallest_pvalue == 1 / (n + 1)
    above = (own._law.scores.numpy()[None] >= result.score[:, None]).sum(1)
    np.testing.assert_allclose(result.pvalue, (1 + above) / (n + 1), rtol=1e-12)


# files --------------------------------------------------------------------------------------------------------


def test_round_trip_in_a_fresh_process(guard, parts, tmp_path):
    queries = parts.queries[::7]
    path = tmp_path / "g.safetensors"
    digest = guard.save(path)
    np.save(tmp_path / "x.npy", queries.pixels.numpy())
    code = (
        "import sys, numpy as np, arht; folder = sys.argv[1];"
        "guard = arht.load(folder + '/g.safetensors'); r = guard.test(np.load(folder + '/x.npy'));"
        "np.savez(folder + '/out.npz', score=r.score, pvalue=r.pvalue);"
        "print(guard.save(folder + '/again.safetensors'), guard, guard.inputs)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env=ENVIRONMENT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    expected = guard.test(queries.pixels.numpy())
    found = np.load(tmp_path / "out.npz")
    assert np.array_equal(found["score"], expected.score)
    assert np.array_equal(found["pvalue"], expected.pvalue)
    assert done.stdout.split()[0] == digest
    assert done.stdout.split()[-1] == str(guard.inputs) == "500"
    assert "calibrated" in done.stdout


def test_a_guard_that_was_not_calibrated_is_saved_as_such(encoder, parts, tmp_path):
    guard = arht.Guard(encoder, "paper", draws=2).fit(parts.train)
    guard.save(tmp_path / "g.safetensors")
    again = arht.load(tmp_path / "g.safetensors")
    assert (again.fitted, again.calibrated) == (True, False)
    same(
        again.calibrate(parts.calibration).test(parts.queries[:9]),
        guard.calibrate(parts.calibration).test(parts.queries[:9]),
    )


def test_a_net_of_ones_own_and_a_scorer_of_others_come_back_with_what_was_theirs(tmp_path):
    from sklearn.ensemble import IsolationForest

    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh())
    guard = arht.Guard(net, FromScorer(IsolationForest(random_state=0)), layers="0").fit(x[:200], calibration=x[200:])
    guard.save(tmp_path / "g.safetensors")
    (layer,) = guard._layers.values()
    other = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh())
    again = arht.load(tmp_path / "g.safetensors", net=other, scorer=layer.detector.scorer)
    same(again.test(x[:50] * 2), guard.test(x[:50] * 2))
    assert auroc(guard.score(x[200:]), guard.score(6 * x[:100])).value > 0.9


# what it is given ----------------------------------------------------------------------------------------------


def test_labels_from_images_a_pair_an_argument_or_batches_are_the_same(encoder, parts):
    detector = MahalanobisDetector(ridge=0.01, reference="class")

    def fitted(*data, **more):
        guard = arht.Guard(encoder, detector, draws=2).fit(*data, **more)
        return guard.calibrate(parts.calibration).test(parts.queries[::9])

    train = parts.train
    one = fitted(train)
    same(one, fitted((train.pixels, train.labels)))
    same(one, fitted(train.pixels.numpy(), train.labels.numpy()))
    same(one, fitted([train[:256], train[256:]]))
    same(one, fitted([[train.pixels[:256], train.labels[:256]], (train.pixels[256:], train.labels[256:])]))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(encoder.transform(train.pixels), train.labels), batch_size=256
    )
    same(one, fitted(loader))
    other = fitted(iter([train[:100], train[100:]]))  # other blocks: the moments are rounded otherwise
    np.testing.assert_allclose(other.score, one.score, rtol=1e-6)


def test_predicted_labels_stand_in(encoder, parts):
    x = encoder.transform(parts.train.pixels)
    guard = arht.Guard(encoder, MahalanobisDetector(ridge=0.01, reference="class"), draws=2)
    guard.fit(x)
    predicted = torch.cat([encoder.predict(part, bank=guard.bank).argmax(1) for part in x.split(module.BLOCK)])
    assert (predicted != parts.train.labels).any()  # or the test would say nothing
    told = arht.Guard(encoder, MahalanobisDetector(ridge=0.01, reference="class"), draws=2).fit(x, predicted)
    same(
        guard.calibrate(parts.calibration).test(parts.queries[:40]),
        told.calibrate(parts.calibration).test(parts.queries[:40]),
    )


def test_stored_pixels_go_through_the_transform_and_floats_do_not(auto, encoder, parts):
    queries = parts.queries[::11]
    result = auto.test(queries)
    same(result, auto.test(queries.pixels.numpy()))
    floats = auto.test(encoder.transform(queries.pixels))
    assert isinstance(floats.score, torch.Tensor)
    assert np.array_equal(floats.score.numpy(), result.score)


def test_chunks_change_nothing_but_the_last_digits(guard, encoder, parts, monkeypatch):
    queries = parts.queries[::5].pixels.numpy()
    whole = guard.test(queries)
    in_batches = guard.test(iter([queries[:50], queries[50:]]))
    np.testing.assert_allclose(in_batches.score, whole.score, rtol=1e-12)
    monkeypatch.setattr(module, "BLOCK", 32)
    small = guard.test(queries)
    np.testing.assert_allclose(small.score, whole.score, rtol=1e-12)
    assert np.array_equal(small.pvalue, whole.pvalue)
    watches, x = [layer.watch for layer in guard._layers.values()], encoder.transform(parts.queries[::5].pixels)
    for draws, alone in zip(guard._draw(x, watches), guard._draw(x[:7], watches), strict=True):
        assert torch.equal(draws[:7], alone)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_input_is_marked_and_its_neighbours_are_untouched(guard, encoder, parts, value):
    x = encoder.transform(parts.queries[::20].pixels)
    clean = guard.test(x)
    bad = x.clone()
    bad[[0, 7], 0, 3, 4] = value
    result = guard.test(bad, explain=True)
    assert result.outcome[[0, 7]].tolist() == [Outcome.NOT_FINITE] * 2
    others = [i for i in range(len(x)) if i not in (0, 7)]
    assert torch.isnan(result.pvalue[[0, 7]]).all()
    assert torch.isnan(result.score[[0, 7]]).all()
    assert torch.equal(result.score[others], clean.score[others])
    assert torch.equal(result.pvalue[others], clean.pvalue[others])
    assert not result.decide(fdr=0.99).rejected[[0, 7]].any()
    assert all(torch.isnan(share[[0, 7]]).all() for share in result.explanation.layers.values())


def test_weight_draws_are_the_same_for_the_same_generator(encoder, parts):
    def scores(seed):
        guard = arht.Guard(encoder, "paper", draws=2, generator=torch.Generator().manual_seed(seed))
        return guard.fit(parts.train).calibrate(parts.calibration).score(parts.queries[:30])

    assert np.array_equal(scores(3), scores(3))
    assert not np.array_equal(scores(3), scores(4))


def test_a_module_without_posterior(parts, encoder):
    guard = arht.Guard(encoder.net).fit(encoder.transform(parts.train.pixels), parts.train.labels)
    assert len(guard.bank) == 1
    guard.calibrate(encoder.transform(parts.calibration.pixels))
    kinds = parts.kinds.numpy()
    scores = guard.score(encoder.transform(parts.queries.pixels)).numpy()
    assert auroc(scores[kinds == 0], scores[kinds == 2]).value > 0.8


def test_draws_of_a_callable():
    def function(x, draws, generator):
        noise = 0.1 * torch.randn(draws, x.shape[1], generator=generator)
        return x[:, None] + noise

    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    guard = arht.Guard(arht.posterior.FromCallable(function), "paper", draws=6).fit(x[:150], calibration=x[150:])
    assert auroc(guard.score(x[150:]), guard.score(x[:100] + 5)).value > 0.99


# detectors of one's own ----------------------------------------------------------------------------------------


def test_own_detector_sees_what_it_would_see_by_itself(encoder, parts):
    guard = arht.Guard(encoder, ARHTDetector(ridge=0.1), draws=4).fit(parts.train, calibration=parts.calibration)
    draws = [encoder.draw(encoder.transform(part.pixels), bank=guard.bank) for part in (parts.train, parts.calibration)]
    alone = ARHTDetector(ridge=0.1).fit(draws[0]).calibrate(draws[1])
    queries = parts.queries[::4]
    expected = alone.test(encoder.draw(encoder.transform(queries.pixels), bank=guard.bank))
    result = guard.test(queries)
    np.testing.assert_allclose(result.score, expected.score.numpy(), rtol=1e-9)
    np.testing.assert_allclose(result.ridge, expected.ridge.numpy())
    assert np.array_equal(result.pvalue, expected.pvalue.numpy())
    assert result.layers is None


def test_two_sided_and_predictive_detectors(encoder, parts):
    kinds = parts.kinds.numpy()
    for detector, layers in ((RHTDetector(1.0, tail="two-sided"), "embedding"), (Energy(), "")):
        guard = arht.Guard(encoder, detector, layers=layers, draws=4).fit(parts.train, calibration=parts.calibration)
        result = guard.test(parts.queries)
        assert np.isfinite(result.score).all()
        # a larger score is a smaller p-value
        order = np.argsort(result.score)
        assert (np.diff(result.pvalue[order]) <= 1e-12).all()
        assert auroc(result.score[kinds == 0], result.score[kinds == 2]).value > 0.6


def test_the_same_detector_is_not_touched(encoder, parts):
    detector = ARHTDetector()
    arht.Guard(encoder, detector, draws=2).fit(parts.train[:100], calibration=parts.calibration[:50])
    assert not detector.fitted


# explanations, audit -------------------------------------------------------------------------------------------


def test_explanations_add_up(guard, parts):
    queries = parts.queries[::40]
    explanation = guard.explain(queries)
    total = sum(explanation.layers.values())
    np.testing.assert_allclose(total, 1, rtol=1e-9)
    assert set(explanation.layers) == {one["layer"] for one in guard.watched}
    for name, part in explanation.parts.items():
        sums = np.asarray(part.directions).sum(1)
        if guard._layers[name].detector.reference == "relative":  # (class - global) / (class + global)
            assert (np.abs(sums) < 1).all()
            assert (np.sign(sums) == np.sign(guard.test(queries).layers[name].statistic)).all()
        else:
            np.testing.assert_allclose(sums, 1, rtol=1e-6)
        assert part.nearest.shape == part.distances.shape == (len(queries), 5), name
        assert (np.diff(part.distances) >= 0).all()
        assert ((part.nearest >= 0) & (part.nearest < len(parts.train))).all()
    same_way = guard.test(queries, explain=True).explanation
    assert np.array_equal(same_way.layers[next(iter(same_way.layers))], explanation.layers[next(iter(same_way.layers))])


def test_the_nearest_reference_input_of_a_kept_one_is_itself(own, parts):
    (kept,) = [layer.detector._kept for name, layer in own._layers.items() if name.startswith("conv1")]
    positions = kept.positions[:20]
    part = own.explain(parts.train[positions]).parts["conv1:spread"]
    assert part.nearest[:, 0].tolist() == positions.tolist()
    assert part.distances[:, 0].max() < 1e-2 * part.distances[:, 1].min()


def test_photographs_are_explained_by_shallow_layers(auto, parts):
    shares = auto.explain(parts.queries[parts.kinds == 2]).layers
    halves = {one["layer"]: one["half"] for one in auto.watched}
    shallow = sum(share for name, share in shares.items() if halves[name] == "shallow")
    assert np.median(shallow) > 0.5


def test_the_calibration_set_does_not_audit_itself(auto, parts):
    with pytest.raises(InputError, match=r"^audit: needs inputs that calibration has not seen; .* give others\.$"):
        auto.audit(parts.calibration)


def test_audit_says_no_where_the_data_have_shifted(auto, parts):
    photographs = parts.queries[parts.kinds == 2]
    found = auto.audit(replace(photographs), fdr=0.2, tests=10)
    assert not found.passed
    assert any("too many p-values" in reason for reason in found.reasons)


# memory --------------------------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_number_of_inputs():
    """A batch is 32 MB: 24 further ones that were kept would be 770 MB."""
    code = (
        "import resource, torch, arht\n"
        "torch.set_num_threads(1)\n"
        "def batches(n):\n"
        "    for i in range(n):\n"
        "        yield torch.randn(400, 20_000, generator=torch.Generator().manual_seed(i))\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "guard = arht.Guard(torch.nn.Linear(20_000, 6), 'paper')\n"
        "guard.fit(batches(2)).calibrate(batches(2)).test(batches(2))\n"
        "before = peak()\n"
        "guard.fit(batches(8)).calibrate(batches(8))\n"
        "assert len(guard.test(batches(8)).score) == 3200\n"
        "print((peak() - before) / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100
