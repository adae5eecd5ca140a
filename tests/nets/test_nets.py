"""Architectures: their sizes, shapes and refusals."""

import pytest
import torch

from arht import nets
from arht.errors import InputError
from arht.posterior import MeanField

COUNTS = {"CNN": 31_340, "LeNet": 62_006, "AlexNet": 2_472_266, "ResNet18": 11_699_522}


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name):
    net = nets.build({"architecture": name})
    assert count(net) == COUNTS[name]
    assert count(MeanField(net)) == 2 * COUNTS[name]


def test_mean_field_doubles_only_what_is_random():
    net = nets.ResNet18()
    layers = ["layer4.1.conv1", "fc"]
    random = sum(count(net.get_submodule(layer)) for layer in layers)
    assert count(MeanField(net, layers)) == COUNTS["ResNet18"] + random


@pytest.mark.parametrize(("name", "width"), [("CNN", 50), ("LeNet", 84), ("AlexNet", 256), ("ResNet18", 1000)])
def test_embedding_and_head_are_apart(name, width):
    net = nets.build({"architecture": name}).eval()
    x = torch.rand(2, 3, 32, 32)
    embedding = net.embed(x)
    assert embedding.shape == (2, width)
    assert torch.equal(net.head(embedding), net(x))
    headless = nets.build({"architecture": name, "num_classes": None}).eval()
    assert headless(x).shape == (2, width)
    assert type(nets.build({"architecture": name, **net.config()})) is type(net)


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 64), (4, 40)])
def test_channels_and_sizes_are_free(channels, size):
    for name in ("CNN", "LeNet", "AlexNet"):
        if name == "AlexNet" and size < 29:
            continue
        net = nets.build({"architecture": name, "in_channels": channels, "image_size": size, "num_classes": 7})
        assert net(torch.rand(2, channels, size, size)).shape == (2, 7)


def test_cifar_stem_keeps_the_resolution():
    small, large = nets.ResNet18(stem="cifar"), nets.ResNet18()
    maps = []
    for net in (small, large):
        net.layer1.register_forward_hook(lambda module, inputs, output: maps.append(output.shape[-1]))
        net.eval()(torch.rand(1, 3, 32, 32))
    assert maps == [32, 8]


def test_mlp_blocks():
    net = nets.MLP(5, 2, blocks=3, width=11)
    assert net.embed(torch.rand(4, 5)).shape == (4, 11)
    assert net(torch.rand(4, 5)).shape == (4, 2)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: nets.build({"architecture": "VGG"}), "build: architecture must be one of CNN, LeNet"),
        (lambda: nets.LeNet(activation="tanh"), "LeNet: activation must be one of softplus, relu; got 'tanh'"),
        (lambda: nets.LeNet(image_size=8), "LeNet: image_size must be a number of at least 16"),
        (lambda: nets.CNN(in_channels=0), "CNN: in_channels must be a whole number of at least 1; got 0"),
        (lambda: nets.ResNet18(stem="x"), "ResNet18: stem must be one of imagenet, cifar; got 'x'"),
    ],
)
def test_refusals(call, line):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
