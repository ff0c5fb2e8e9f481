from itertools import pairwise

import pytest
import torch
from torch import nn

from lib.data.vision import torchvision
from lib.models.networks import mlp, resnet18, resnet20, vgg13

PIXELS = dict.fromkeys((resnet18, vgg13, resnet20), {"K": 10, "channels": 1, "width": 1 / 8})
SOUND = PIXELS | {mlp: {"inputs": 9, "M": 4, "K": 3, "width": 8, "depth": 2}}


def shapes_seen(model, x, *names):
    """The shapes of what these parts of a network give when it runs."""
    seen = []
    for name in names:
        getattr(model, name).register_forward_hook(lambda part, given, out: seen.append(tuple(out.shape)))
    model(x)
    return seen


@pytest.mark.parametrize("K, channels, width, bias", [(10, 3, 1.0, True), (10, 1, 0.5, False), (7, 3, 0.3, False)])
def test_resnet18_has_torchvisions_layers_with_scaled_widths_but_for_the_stem_and_the_head(K, channels, width, bias):
    with torch.device("meta"):  # its shapes are all that is asked for
        theirs = torchvision.models.resnet18(num_classes=K)
    scaled = {size: round(width * size) for size in (64, 128, 256, 512)}
    expected = {name: tuple(scaled.get(size, size) for size in p.shape) for name, p in theirs.named_parameters()}
    expected["conv1.weight"] = (scaled[64], channels, 3, 3)
    if not bias:
        del expected["fc.bias"]
    ours = resnet18(K, channels, width, bias)
    assert {name: tuple(p.shape) for name, p in ours.named_parameters()} == expected
    assert [name for name, _ in ours.named_children()] == [name for name, _ in theirs.named_children()]


@pytest.mark.parametrize("channels, size", [(1, 28), (3, 32), (1, 8)])
@pytest.mark.parametrize("make, maps, stages", [(resnet18, 64, 4), (resnet20, 16, 3)])
def test_the_first_stage_keeps_the_resolution_and_the_others_halve_it(make, maps, stages, channels, size):
    model, x = make(10, channels, width=4 / maps), torch.zeros(2, channels, size, size)
    seen = shapes_seen(model, x, *(f"layer{position + 1}" for position in range(stages)), "avgpool")
    sides = [-(-size // 2**position) for position in range(stages)]
    blocks = [(2, 4 * 2**position, side, side) for position, side in enumerate(sides)]
    assert seen == [*blocks, (2, blocks[-1][1], 1, 1)]


@pytest.mark.parametrize("depth, sizes", [(1, [12, 4, 3]), (4, [12, 6, 6, 6, 4, 3])])
def test_every_layer_of_the_mlp_maps_normalises_and_rectifies_what_is_flattened(depth, sizes):
    model = mlp(12, 4, 3, 6, depth, seed=1).double()
    assert [tuple(p.shape) for p in model.parameters() if p.ndim == 2] == [(b, a) for a, b in pairwise(sizes)]
    x = torch.randn(9, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    H = x.flatten(1)
    for layer in model.hidden:
        linear, norm = layer[0], layer[1]
        Z = H @ linear.weight.T + linear.bias
        H = torch.relu(norm.weight * (Z - Z.mean(0)) / (Z.var(0, correction=0) + 1e-5).sqrt() + norm.bias)
    torch.testing.assert_close(model.features(x), H, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(x), H @ model.fc.weight.T + model.fc.bias, rtol=0, atol=1e-12)
    assert model.features(x).min() >= 0


@pytest.mark.parametrize("make", SOUND)
def test_a_seed_is_one_network_and_the_global_generator_stays_as_it_was(make):
    before = torch.get_rng_state()
    first, second, other = (make(**SOUND[make], seed=seed).state_dict() for seed in (4, 4, 5))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_the_convolutions_of_vgg13_are_torchvisions():
    """With their weights they give their result, on an image that every pooling halves."""
    with torch.random.fork_rng():
        theirs = torchvision.models.vgg13_bn(init_weights=False).features.eval()
    ours = vgg13(10).eval()
    ours.convolutions.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 3, 32, 64, generator=torch.Generator().manual_seed(0))
    maps = theirs(x)
    assert maps.shape == (1, 512, 1, 2)
    torch.testing.assert_close(ours.features(x), maps.mean((2, 3)))
    torch.testing.assert_close(ours(x), ours.fc(maps.mean((2, 3))))


@pytest.mark.parametrize("size", [32, 28, 14, 8, 1])
def test_an_image_of_any_size_leaves_a_pixel_of_features(size):
    model = vgg13(4, 1, width=1 / 16).eval()
    x = torch.randn(2, 1, size, size, generator=torch.Generator().manual_seed(0))
    assert model.convolutions(x).shape == (2, 32, 1, 1)
    assert model(x).shape == (2, 4)
    assert model.features(x).min() >= 0


@pytest.mark.parametrize(
    "K, channels, width, head_layers, head_width", [(10, 3, 1.0, 1, 64), (10, 1, 0.5, 4, 64), (7, 3, 0.3, 5, 12)]
)
def test_resnet20_has_nineteen_convolutions_and_a_head_without_biases(K, channels, width, head_layers, head_width):
    model = resnet20(K, channels, width, head_layers, head_width)
    widths = [round(width * maps) for maps in (16, 32, 64)]
    sizes = [channels, *[widths[0]] * 7, *[widths[1]] * 6, *[widths[2]] * 6]
    expected = [shape for a, b in pairwise(sizes) for shape in ((b, a, 3, 3), (b,), (b,))]
    expected += [(b, a) for a, b in pairwise([widths[2], *[head_width] * (head_layers - 1), K])]
    assert sorted(tuple(p.shape) for p in model.parameters()) == sorted(expected)
    assert [tuple(W.weight.shape) for W in model.head] == expected[3 * 19 :]


def test_a_shortcut_of_resnet20_skips_every_other_pixel_and_adds_maps_of_zeros():
    block = resnet20(10, 1, width=0.5).layer2[0].eval()
    nn.init.zeros_(block.bn2.weight)  # what is beside the shortcut is then zero
    x = torch.rand(3, 8, 7, 7, generator=torch.Generator().manual_seed(0))
    out = block(x)
    assert out.shape == (3, 16, 4, 4)
    assert torch.equal(out[:, :8], x[:, :, ::2, ::2]) and not out[:, 8:].any()


def test_the_layers_of_the_head_are_those_of_the_printed_formula():
    model = resnet20(3, 1, 1 / 8, head_layers=4, head_width=6, seed=3).double().eval()
    x = torch.randn(5, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    W = [layer.weight for layer in model.head]
    H = model.features(x).T
    assert H.min() >= 0
    H_2, H_3 = W[0] @ H, W[1] @ (W[0] @ H).clamp(min=0)
    H_4 = W[2] @ H_3.clamp(min=0)
    scores = W[3] @ H_4.clamp(min=0)
    assert len(model.layers(x)) == 5
    for found, expected in zip(model.layers(x), (H, H_2, H_3, H_4, scores), strict=True):
        torch.testing.assert_close(found, expected.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(x), scores.T, rtol=0, atol=1e-12)


def test_initial_weights_have_the_variances_of_their_sources_and_biases_of_vgg13_are_zero():
    """He's with the fan-out in the ResNet18 and the VGG13, with the fan-in in the ResNet20, PyTorch's in its head."""
    vgg, deep = vgg13(100, seed=2), resnet20(10, 3, head_layers=4, seed=2)
    convolutions = [layer for layer in vgg.convolutions if isinstance(layer, nn.Conv2d)]
    variances = {layer: 2 / (9 * layer.out_channels) for layer in [*convolutions, resnet18(10, 3, seed=1).conv1]}
    variances |= {vgg.fc: 0.01**2, deep.layer3[0].conv1: 2 / (9 * 32), deep.head[1]: 1 / (3 * 64)}
    for layer, variance in variances.items():
        assert layer.weight.std().item() == pytest.approx(variance**0.5, rel=0.05)
    assert not any(layer.bias.any() for layer in [*convolutions, vgg.fc])


@pytest.mark.parametrize("make", SOUND)
def test_impossible_networks_are_refused(make):
    for name in SOUND[make]:
        with pytest.raises(ValueError, match=name):
            make(**(SOUND[make] | {name: 0}))
