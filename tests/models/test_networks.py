import pytest
import torch

from lib.models.networks import resnet18
from lib.vision import torchvision


def expected_parameters(K, channels, widths, bias):
    """Parameters of a ResNet18, counted layer by layer from the description in He et al. (2016)."""

    def convolution(size, incoming, outgoing):
        return size * size * incoming * outgoing + 2 * outgoing  # and scale and shift of its batch normalisation

    total, incoming = convolution(3, channels, widths[0]), widths[0]
    for position, outgoing in enumerate(widths):
        total += convolution(3, incoming, outgoing) + 3 * convolution(3, outgoing, outgoing)
        total += convolution(1, incoming, outgoing) if position else 0  # the shortcut where the shape changes
        incoming = outgoing
    return total + incoming * K + bias * K


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    "K, channels, width, bias, widths",
    [
        (10, 3, 1.0, True, (64, 128, 256, 512)),
        (10, 1, 1.0, False, (64, 128, 256, 512)),
        (4, 1, 0.125, True, (8, 16, 32, 64)),
        (7, 3, 0.3, False, (19, 38, 77, 154)),
    ],
)
def test_it_has_the_parameters_of_a_resnet18_of_these_widths(K, channels, width, bias, widths):
    assert count(resnet18(K, channels, width, bias)) == expected_parameters(K, channels, widths, bias)


def test_at_width_one_it_has_torchvisions_layers_but_for_the_stem():
    ours, theirs = resnet18(1000), torchvision.models.resnet18()
    assert [name for name, _ in ours.named_children()] == [name for name, _ in theirs.named_children()]
    shapes = [{name: tuple(p.shape) for name, p in model.named_parameters()} for model in (ours, theirs)]
    assert shapes[0].pop("conv1.weight") == (64, 3, 3, 3)
    assert shapes[1].pop("conv1.weight") == (64, 3, 7, 7)
    assert shapes[0] == shapes[1]
    assert count(theirs) - count(ours) == 64 * 3 * (7 * 7 - 3 * 3)


@pytest.mark.parametrize("channels, size", [(1, 28), (3, 32), (1, 8)])
def test_the_blocks_keep_the_resolution_once_and_halve_it_three_times(channels, size):
    model = resnet18(10, channels, width=1 / 16).eval()
    shapes = {}
    for name in ("layer1", "layer2", "layer3", "layer4", "avgpool"):
        getattr(model, name).register_forward_hook(lambda _m, _i, out, name=name: shapes.update({name: out.shape}))
    assert model(torch.zeros(2, channels, size, size)).shape == (2, 10)
    for position in range(4):
        assert shapes[f"layer{position + 1}"][1] == 4 * 2**position
        assert shapes[f"layer{position + 1}"][2] == -(-size // 2**position)
    assert shapes["avgpool"] == (2, 32, 1, 1)


def test_what_goes_into_fc_is_the_mean_over_positions_of_a_block_that_is_never_negative():
    model = resnet18(5, 1, width=1 / 16).eval()
    seen = {}
    model.layer4.register_forward_hook(lambda _m, _i, out: seen.update(maps=out))
    model.fc.register_forward_pre_hook(lambda _m, inputs: seen.update(features=inputs[0]))
    model(torch.randn(3, 1, 12, 12, generator=torch.Generator().manual_seed(0)))
    assert seen["maps"].min() >= 0
    torch.testing.assert_close(seen["features"], seen["maps"].mean((2, 3)))


def test_without_a_bias_the_last_layer_is_linear():
    assert resnet18(3, width=1 / 16, bias=False).fc.bias is None
    assert resnet18(3, width=1 / 16).fc.bias.shape == (3,)


def test_a_seed_is_one_network_and_the_global_generator_stays_as_it_was():
    before = torch.get_rng_state()
    first, second, other = (resnet18(3, width=1 / 16, seed=seed).state_dict() for seed in (4, 4, 5))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["layer1.0.conv1.weight"], other["layer1.0.conv1.weight"])


def test_the_first_layer_is_initialised_like_the_others():
    """He's normal initialisation with the fan-out: the variance is 2 over 9 times the number of maps."""
    stem = resnet18(10, 3, seed=1).conv1.weight.detach()
    assert stem.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"K": 1}, "K = 1"),
        ({"K": 10, "channels": 0}, "channels = 0"),
        ({"K": 10, "width": 0}, "width = 0"),
        ({"K": 10, "width": float("nan")}, "width = nan"),
    ],
)
def test_impossible_networks_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        resnet18(**arguments)
