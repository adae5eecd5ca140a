"""The loop: what it makes small, what it keeps, when it stops."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from arht.data import Augment
from arht.errors import InputError
from arht.posterior import Deterministic, MeanField
from arht.training import Classification, Contrastive, History, Regression, Settings, fit
from tests.training.digits import TEST, TRAIN, TRANSFORM, encoder, log_likelihood, net, seeded, train, weights

QUICK = Settings(epochs=3, learning_rate=3e-3, batch_size=50)


def test_the_loss_falls_and_the_digits_are_learned():
    model = encoder()
    before = log_likelihood(model, TEST)
    history = train(model, settings=Settings(epochs=12, learning_rate=3e-3, batch_size=50), validation=TEST)
    losses = [epoch.loss for epoch in history.epochs]
    assert losses[-1] < losses[0]
    assert log_likelihood(model, TEST) > before + 1
    last = history.epochs[-1]
    assert last.accuracy > 0.8
    assert last.validation_accuracy > 0.8
    assert last.validation_loss < history.epochs[0].validation_loss
    assert not model.training
    assert history.seconds > 0


def test_the_same_generator_gives_the_same_weights():
    first, again, other = encoder(), encoder(), encoder()
    train(first)
    train(again)
    train(other, seed=1)
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))


def test_one_step_is_adam_on_the_bound_by_hand():
    """One batch of all rows in a known order: the loss and the step, from torch.distributions and torch's own Adam."""
    model, twin = encoder(), encoder()
    data = (TRAIN.pixels[:40], TRAIN.labels[:40])
    history = train(model, data, settings=Settings(epochs=1, batch_size=40, learning_rate=0.01, kl_weight=0.5))

    seeds = torch.randint(2**62, (4,), generator=seeded())
    noise = seeded(int(seeds[3]) ^ 2)
    draw = twin.sample(noise)
    out = torch.func.functional_call(twin.net, draw, (TRANSFORM(data[0]),))
    nll = -torch.distributions.Categorical(logits=out).log_prob(data[1]).mean()
    prior = torch.distributions.Normal(0.0, 1.0)
    kl = sum(
        torch.distributions.kl_divergence(torch.distributions.Normal(mean, twin.scales()[name]), prior).sum()
        for name, mean in twin.means().items()
    )
    loss = nll + 0.5 * kl / 40
    assert history.epochs[0].loss == pytest.approx(loss.item(), rel=1e-5)
    assert history.epochs[0].nll == pytest.approx(nll.item(), rel=1e-5)
    assert history.epochs[0].kl == pytest.approx(kl.item(), rel=1e-5)
    optimiser = torch.optim.Adam(twin.parameters(), lr=0.01)
    loss.backward()
    optimiser.step()
    # Adam's first step is the sign of the gradient: a few entries with almost none may differ
    assert ((weights(model) - weights(twin)).abs() < 1e-4).double().mean() > 0.995


def test_the_kl_is_weighed_warmed_up_and_divided_by_the_rows():
    settings = Settings(epochs=4, batch_size=100, kl_weight=0.25, warmup_epochs=3)
    for part, epoch in zip((0.25, 0.5, 0.75, 1.0), train(encoder(), settings=settings).epochs, strict=True):
        assert epoch.loss - epoch.nll == pytest.approx(0.25 * part * epoch.kl / len(TRAIN), rel=1e-3)
    plain = train(encoder(), settings=Settings(epochs=1, kl_weight=0.0)).epochs[0]
    assert plain.loss == pytest.approx(plain.nll, rel=1e-6)


def test_the_kl_keeps_the_scales_up_and_the_means_down():
    """Without it nothing does: more of it is a posterior nearer to its prior."""
    divergences = []
    for weight in (0.0, 0.1, 1.0):
        model = encoder()
        train(model, settings=Settings(epochs=6, learning_rate=1e-2, batch_size=50, kl_weight=weight))
        divergences.append(float(model.kl().detach()))
    assert divergences[0] > divergences[1] > divergences[2]


def test_the_bound_beats_no_kl_on_500_images():
    """Both start near a net without noise. Only with the KL does the noise grow, and the net is less sure of errors."""
    chosen = TRAIN.sample(500, generator=seeded())
    values = []
    for weight in (0.2, 0.0):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        model = MeanField(nn.Sequential(nn.Flatten(), *layers), rho_mean=-5.0, generator=seeded())
        train(model, chosen, settings=Settings(epochs=100, learning_rate=1e-2, batch_size=50, kl_weight=weight))
        values.append(log_likelihood(model, TEST))
    assert values[0] > values[1] + 0.01


def test_local_reparameterisation_learns_the_same_with_other_noise():
    model, plain = encoder(), encoder()
    settings = Settings(epochs=6, learning_rate=3e-3, batch_size=50, local_reparameterisation=True)
    history = train(model, settings=settings)
    train(plain, settings=Settings(epochs=6, learning_rate=3e-3, batch_size=50))
    assert history.epochs[-1].nll < history.epochs[0].nll
    assert not torch.equal(weights(model), weights(plain))
    assert abs(log_likelihood(model, TEST) - log_likelihood(plain, TEST)) < 0.3


def test_cosine_rate():
    history = train(encoder(), settings=Settings(epochs=4, batch_size=len(TRAIN), schedule="cosine", learning_rate=0.1))
    expected = [0.1 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]
    assert [epoch.learning_rate for epoch in history.epochs] == pytest.approx(expected)


def test_early_stopping_keeps_the_best_epoch():
    """Labels at random: the held-out loss rises soon. What is kept are the weights of the epoch that was best."""
    noise = torch.randint(10, (300,), generator=seeded(5))
    data, held = (TRAIN.pixels[:150], noise[:150]), (TRAIN.pixels[150:300], noise[150:])
    settings = Settings(epochs=60, learning_rate=1e-2, batch_size=50, kl_weight=0.0, patience=3)
    model = encoder()
    history = train(model, data, validation=held, settings=settings)
    losses = [epoch.validation_loss for epoch in history.epochs]
    assert history.stopped_early
    assert len(losses) == history.best_epoch + 3 < 60
    assert min(range(len(losses)), key=losses.__getitem__) + 1 == history.best_epoch

    again = encoder()
    train(again, data, settings=Settings(**{**vars(settings), "epochs": history.best_epoch, "patience": None}))
    assert torch.equal(weights(model), weights(again))


def test_augmentation_is_used_and_has_its_own_noise():
    plain, moved, again = encoder(), encoder(), encoder()
    train(plain)
    train(moved, augment=Augment(shift=1, flip=0.0))
    train(again, augment=Augment(shift=1, flip=0.0))
    assert not torch.equal(weights(plain), weights(moved))
    assert torch.equal(weights(moved), weights(again))
    still = encoder()
    train(still, augment=Augment(shift=0, flip=0.0))
    assert torch.equal(weights(plain), weights(still))


def test_only_what_wants_a_gradient_is_trained():
    model = encoder()
    model.net[1].requires_grad_(False)
    before = model.net[1].weight.clone()
    train(model)
    assert torch.equal(before, model.net[1].weight)
    model.requires_grad_(False)
    with pytest.raises(InputError, match="must have parameters that require a gradient; got none"):
        train(model)


def test_regression_learns_the_function_and_the_noise():
    x = torch.rand(600, 1, generator=seeded()) * 6 - 3
    y = torch.sin(x) + 0.1 * torch.randn(600, 1, generator=seeded(1))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    objective = Regression()
    model = MeanField(net, generator=seeded())
    settings = Settings(epochs=150, learning_rate=1e-2, batch_size=100, kl_weight=0.05)
    history = fit(
        model, (x.numpy(), y.numpy()), objective=objective, settings=settings, generator=seeded(), progress=False
    )
    at = torch.linspace(-2.5, 2.5, 50)[:, None]
    mean = model.draw(at, 50, at="2", generator=seeded(3)).mean(1)
    assert (mean - torch.sin(at)).abs().mean() < 0.1
    assert 0.08 < objective.noise < 0.25
    assert history.epochs[-1].accuracy is None
    # a constant predictor of the same data has nll log(sd) + log(2 pi e) / 2
    assert history.epochs[-1].nll < math.log(float(y.std())) + 1.42 - 0.5
    fixed = Regression(noise=0.5)
    fit(MeanField(net), (x, y), objective=fixed, epochs=1, generator=seeded(), progress=False)
    assert fixed.noise == pytest.approx(0.5)


def test_regression_is_the_gaussian_density():
    objective = Regression(noise=0.7)
    targets, outputs = torch.randn(5, 3, generator=seeded()), torch.randn(5, 3, generator=seeded(1))
    expected = -torch.distributions.Normal(outputs, 0.7).log_prob(targets).sum(-1)
    assert torch.allclose(objective([outputs], targets), expected)


def test_contrastive_learns_without_labels():
    augment = Augment(shift=1, flip=0.0, brightness=0.2)
    model, objective = Deterministic(net(outputs=16)), Contrastive()

    def right(model):
        views = objective.views(TEST.pixels, augment, seeded(7))
        with torch.no_grad():
            return int(objective.hits([model(TRANSFORM(view)) for view in views], None)) / len(TEST)

    before = right(model)
    history = train(
        model,
        (TRAIN.pixels, None),
        objective="contrastive",
        augment=augment,
        settings=Settings(epochs=15, learning_rate=3e-3, batch_size=100),
    )
    assert history.epochs[-1].loss < history.epochs[0].loss
    assert right(model) > before
    assert right(model) > 0.9  # half of them by chance


def test_contrastive_is_the_triplet_loss():
    objective = Contrastive(margin=0.2)
    outputs = [torch.randn(6, 4, generator=seeded(i)) for i in range(3)]
    a, p, n = (np.asarray(out / out.norm(dim=1, keepdim=True)) for out in outputs)
    near, far = np.linalg.norm(a - p, axis=1), np.linalg.norm(a - n, axis=1)
    assert np.allclose(objective(outputs, None), np.maximum(near - far + 0.2, 0), atol=1e-5)
    assert int(objective.hits(outputs, None)) == (near < far).sum()
    views = objective.views(TRAIN.pixels[:5], lambda x, generator: x, seeded())
    assert torch.equal(views[0], views[1])
    assert (views[2] != views[0]).flatten(1).any(1).all()  # no input is its own negative


def test_classification_counts_what_is_right():
    objective = Classification()
    logits = torch.tensor([[2.0, 1, 0], [0, 1, 2], [5, 0, 0]])
    assert int(objective.hits([logits], torch.tensor([0, 1, 0]))) == 2


def test_history_on_disk(tmp_path):
    history = train(encoder(), settings=QUICK, folder=tmp_path / "run", validation=TEST[:100])
    rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert History.read(tmp_path / "run" / "history.jsonl").epochs == history.epochs
    assert History.of(json.loads(json.dumps(history.as_dict()))) == history
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoint.safetensors", "history.jsonl"]
    (tmp_path / "run" / "history.jsonl").write_text('{"epoch": 1}\n{"ep')
    with pytest.raises(InputError, match=r"must be a readable history\.jsonl; got: "):
        History.read(tmp_path / "run" / "history.jsonl")


def test_arrays_and_tensors_are_the_same_data():
    models = [encoder() for _ in range(3)]
    for model, data in zip(
        models,
        (TRAIN, (TRAIN.pixels, TRAIN.labels), (TRAIN.pixels.numpy(), TRAIN.labels.numpy().astype(np.int32))),
        strict=True,
    ):
        train(model, data)
    assert torch.equal(weights(models[0]), weights(models[1]))
    assert torch.equal(weights(models[0]), weights(models[2]))
