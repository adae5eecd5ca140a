"""Which layers mode="auto" watches, net by net; one input is all that it sees of the data."""

import pytest
import torch
from torch import nn

import arht
from arht import nets
from arht.guard import Watch
from arht.guard.recipe import auto, paper
from arht.posterior import Deterministic, Ensemble, MeanField, Tap

X = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def taps(encoder, example, labelled=True):
    """half, layer, pooling and reference of each watch."""
    return [
        (w.half, w.tap.layer, w.tap.pooling, getattr(w.detector, "reference", "entropy"))
        for w in auto(encoder, example, labelled)
    ]


def test_lenet():
    """The rule of the page, line by line."""
    encoder = MeanField(nets.LeNet(in_channels=3, activation="relu"))
    assert taps(encoder, X) == [
        ("shallow", "conv1", "moments", "class"),
        ("shallow", "conv2", "moments", "class"),
        ("shallow", "pool1", "spread", "class"),
        ("shallow", "pool2", "spread", "class"),
        ("deep", "pool2", "flatten", "relative"),
        ("deep", "", "mean", "relative"),
        ("deep", "", "mean", "entropy"),
    ]
    for watch in auto(encoder, X, True)[:-1]:
        assert (watch.detector.ridge, watch.detector.ridge_unit) == (0.01, "mean_eigenvalue")
        assert watch.mean
        assert watch.standardised


def test_labels_change_nothing_where_the_net_has_classes():
    encoder = MeanField(nets.LeNet(in_channels=3))
    assert taps(encoder, X, labelled=False) == taps(encoder, X, labelled=True)


def test_cnn_and_members_of_an_ensemble():
    net = nets.CNN(in_channels=3)
    found = taps(Ensemble(net, 2), X)
    assert [layer for half, layer, *_ in found if half == "shallow"][:2] == [
        name for name, module in net.named_modules() if isinstance(module, nn.Conv2d)
    ][:2]
    assert found[-2:] == [("deep", "", "mean", "relative"), ("deep", "", "mean", "entropy")]


def test_resnet_has_maps_too_large_to_flatten():
    net = nets.build({"architecture": "ResNet18", "in_channels": 3, "image_size": 32, "num_classes": 10})
    found = taps(Deterministic(net), X)
    assert found[0][2] in ("moments", "spread")
    assert found[-2:] == [("deep", "", "mean", "relative"), ("deep", "", "mean", "entropy")]
    watches = auto(Deterministic(net), X, True)
    draws = Deterministic(net).draw(X, at=list(dict.fromkeys(watch.tap for watch in watches)))
    assert all(values.shape[2] <= 4096 for values in draws.values())


def test_mlp_on_vectors_is_watched_in_its_first_two_layers():
    net = nets.MLP(in_features=7, out_features=4)
    found = taps(MeanField(net), torch.zeros(1, 7))
    linears = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    shallow = [layer for half, layer, *_ in found if half == "shallow"]
    assert shallow == linears[: len(shallow)]
    assert shallow
    assert "head" not in shallow
    assert [row[1] for row in found if row[0] == "deep"] == ["", ""]


def test_a_net_without_head_has_no_logits_to_watch():
    net = nets.LeNet(in_channels=3, num_classes=None)
    assert taps(MeanField(net), X, labelled=False) == [
        ("shallow", "conv1", "moments", "global"),
        ("shallow", "conv2", "moments", "global"),
        ("shallow", "pool1", "spread", "global"),
        ("shallow", "pool2", "spread", "global"),
        ("deep", "pool2", "flatten", "global"),
        ("deep", "act4", "mean", "global"),
    ]
    assert {row[3] for row in taps(MeanField(net), X, labelled=True)} == {"class", "relative"}


def test_an_embedding_as_wide_as_there_are_classes_does_not_hide_the_logits():
    net = nets.LeNet(in_channels=3, num_classes=10, embedding_dim=10)
    assert taps(MeanField(net), X)[-1] == ("deep", "", "mean", "entropy")


def test_regression():
    one = nets.MLP(in_features=7, out_features=1)
    assert {row[3] for row in taps(MeanField(one), torch.zeros(1, 7), labelled=False)} == {"global"}
    several = MeanField(nets.MLP(in_features=7, out_features=3))
    several.record = {"options": {"objective": "regression"}}
    assert {row[3] for row in taps(several, torch.zeros(1, 7), labelled=False)} == {"global"}
    x = torch.randn(200, 7, generator=torch.Generator().manual_seed(0))
    guard = arht.Guard(MeanField(one), draws=2).fit(x[:120], calibration=x[120:])
    assert guard.test(x[:3] * 30).pvalue.max() < guard.test(x[:100]).pvalue.mean()


class Own(nn.Module):
    """Says nothing about itself."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AvgPool2d(3), nn.Conv2d(4, 6, 3))
        self.classify = nn.Sequential(nn.Flatten(), nn.Linear(54, 12), nn.ReLU(), nn.Linear(12, 5))

    def forward(self, x):
        return self.classify(self.features(x))


def test_a_module_of_ones_own():
    """A last linear layer gives logits, if nobody says that they are the embedding's own."""
    assert taps(Deterministic(Own()), X) == [
        ("shallow", "features.0", "moments", "class"),
        ("shallow", "features.3", "moments", "class"),
        ("shallow", "features.2", "spread", "class"),
        ("deep", "features.3", "flatten", "relative"),
        ("deep", "", "mean", "relative"),
        ("deep", "", "mean", "entropy"),
    ]
    without = nn.Sequential(Own().features, nn.Flatten(), nn.Linear(54, 12), nn.ReLU())
    assert taps(Deterministic(without), X, labelled=False)[-1] == ("deep", "", "mean", "global")


def test_an_embedding_that_is_the_last_map_is_watched_once():
    net = nn.Sequential(nn.Conv2d(3, 2, 9, stride=9), nn.Flatten())
    assert taps(Deterministic(net), X, labelled=False) == [
        ("shallow", "0", "moments", "global"),
        ("deep", "", "mean", "global"),
    ]


class Tokens(nn.Module):
    """A small transformer: [B, T] token ids -> logits [B, 3]."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.block1 = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU())
        self.block2 = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU())
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.embed(x)
        x = x + self.block1(x)
        x = x + self.block2(x)
        return self.head(self.norm(x).mean(1))


def test_tokens():
    ids = torch.randint(0, 10, (300, 9), generator=torch.Generator().manual_seed(0))
    encoder = Deterministic(Tokens())
    assert taps(encoder, ids[:1]) == [
        ("shallow", "block1.0", "mean", "class"),
        ("shallow", "block2.0", "mean", "class"),
        ("deep", "", "mean", "relative"),
        ("deep", "", "mean", "entropy"),
    ]
    guard = arht.Guard(encoder).fit(ids[:200], calibration=ids[200:])
    strange = torch.randint(20, 30, (100, 9), generator=torch.Generator().manual_seed(1))
    assert float((guard.test(strange).pvalue <= 0.05).double().mean()) > 0.5
    assert float((guard.test(ids[:200]).pvalue <= 0.05).double().mean()) < 0.3


def test_the_rule_sees_a_shape_and_no_values():
    encoder = MeanField(nets.LeNet(in_channels=3))
    assert taps(encoder, X) == taps(encoder, 1000 * X + 5)


def test_the_net_is_left_as_it_was():
    net = nets.LeNet(in_channels=3)
    net.train()
    auto(Deterministic(net), X, True)
    assert all(module.training for module in net.modules())
    assert not any(module._forward_hooks for module in net.modules())


def test_paper_mode_is_one_layer():
    encoder = MeanField(nets.LeNet(in_channels=3))
    (watch,) = paper(encoder)
    assert isinstance(watch, Watch)
    assert (watch.tap, watch.mean, watch.standardised) == (Tap("act4"), False, False)
    assert watch.detector.reference == "global"


@pytest.mark.parametrize("name", ["LeNet", "CNN"])
def test_small_pictures_of_one_channel(name):
    net = nets.build({"architecture": name, "in_channels": 1, "image_size": 28, "num_classes": 10})
    x = torch.rand(160, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    guard = arht.Guard(MeanField(net), draws=2).fit(x[:100], calibration=x[100:])
    assert torch.isfinite(guard.score(x[:5])).all()
    assert len(guard.watched) == len(auto(guard.encoder, x[:1], False))
    assert guard.watched[0]["half"] == "shallow"
