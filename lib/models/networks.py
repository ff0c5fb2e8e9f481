"""The deep networks of the book."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import torch
from torch import Tensor, nn

from lib import checks
from lib.data.vision import torchvision


class _ResNet(torchvision.models.ResNet):
    """torchvision's ResNet of basic blocks with every width multiplied, and a stem and head for small images."""

    def __init__(self, K: int, channels: int, width: float, bias: bool):
        self._width = width
        super().__init__(torchvision.models.resnet.BasicBlock, [2, 2, 2, 2], num_classes=K)
        self.conv1 = nn.Conv2d(channels, self._scaled(64), kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(self._scaled(64))
        self.maxpool = nn.Identity()
        self.fc = nn.Linear(self._scaled(512), K, bias=bias)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")

    def _make_layer(self, block, planes, *args, **kwargs):
        if planes == 64:  # the first block reads what the stem gives, 64 feature maps in torchvision
            self.inplanes = self._scaled(64)
        return super()._make_layer(block, self._scaled(planes), *args, **kwargs)

    def _scaled(self, planes: int) -> int:
        return round(planes * self._width)


def resnet18(K: int, channels: int = 3, width: float = 1.0, bias: bool = True, seed: int = 0) -> nn.Module:
    r"""torchvision's ResNet18 for small images: a 3x3 convolution of stride 1 first, and no max-pooling.

    Its residual blocks, of which the paper counts four, are `layer1` to `layer4`, with :math:`64w, 128w, 256w` and
    :math:`512w` feature maps; the last three halve the resolution. `avgpool` averages the maps of `layer4` over
    positions, and the features :math:`h(x) \in \mathbb R^{512w}` of neural collapse are its output, which goes into
    `fc`. They are non-negative because a block ends in a ReLU.

    Source: He et al. (2016); Tirer & Bruna, Figures 5 and 10, who name the network but not its stem.

    Parameters
    ----------
    K
        Number of classes.
    channels
        Of an image: 1 for grey, 3 for colour.
    width
        Multiplier :math:`w` of all widths, which are rounded to whole numbers.
    bias
        Whether the last layer has a bias.
    seed
        Of the initial weights, which are torchvision's and drawn on the CPU: a seed gives the same network on any
        device.

    Raises
    ------
    ValueError
        If `K` is below 2, `channels` below 1, or `width` not a positive number that leaves at least one feature map.

    Examples
    --------
    >>> model = resnet18(K=10, width=1 / 8)
    >>> model.fc
    Linear(in_features=64, out_features=10, bias=True)
    """
    _check_sizes(K, channels, width, 64)
    with _seeded(seed):
        return _ResNet(K, channels, width, bias)


class _MLP(nn.Module):
    """Hidden layers of linear map, batch normalisation and ReLU, and the last linear map `fc`."""

    def __init__(self, sizes: list[int], K: int):
        super().__init__()
        self.hidden = nn.Sequential()
        for incoming, outgoing in pairwise(sizes):
            self.hidden.append(nn.Sequential(nn.Linear(incoming, outgoing), nn.BatchNorm1d(outgoing), nn.ReLU()))
        self.fc = nn.Linear(sizes[-1], K)

    def features(self, x: Tensor) -> Tensor:
        return self.hidden(x.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


def mlp(inputs: int, M: int, K: int, width: int = 2048, depth: int = 9, seed: int = 0) -> nn.Module:
    r"""A multilayer perceptron with `depth` hidden layers, the last of which has M units: the features.

    .. math:: h_0 = x, \qquad h_l = \mathrm{ReLU}(\mathrm{BN}_l(A_l h_{l-1} + a_l)), \qquad f(x) = W h_L + b,

    with :math:`L` the depth and :math:`h_1, \dots, h_{L-1}` of length `width`. The features :math:`h_L(x)` in
    :math:`\mathbb R^M` go into `fc` as they are, and `model.features(x)` returns them. They are non-negative. Images
    are flattened.

    Source: Nguyen et al. (2023), section 4 and their published code, which counts the layer of features in the depth.

    Parameters
    ----------
    inputs
        Numbers in one input: channels times height times width of an image.
    M
        Number of features.
    K
        Number of classes.
    width, depth
        Units of the other hidden layers, and number of hidden layers, the last included.
    seed
        Of the initial weights, which are PyTorch's default and drawn on the CPU.

    Raises
    ------
    ValueError
        For a number that is not a positive integer, and for fewer than 2 classes.

    Examples
    --------
    >>> model = mlp(inputs=4, M=3, K=2, width=8, depth=2)
    >>> x = torch.zeros(5, 4)
    >>> tuple(model.features(x).shape), tuple(model(x).shape)
    ((5, 3), (5, 2))
    """
    checks.positive_integers(inputs=inputs, M=M, width=width, depth=depth)
    checks.integers(2, K=K)
    with _seeded(seed):
        return _MLP([inputs, *[width] * (depth - 1), M], K)


class _VGG(nn.Module):
    """Blocks of two convolutions and a max-pooling, the mean over positions, and one linear layer."""

    def __init__(self, widths: list[int], K: int, channels: int):
        super().__init__()
        layers, incoming = [], channels
        for outgoing in widths:
            for _ in range(2):
                layers.append(nn.Conv2d(incoming, outgoing, kernel_size=3, padding=1))
                nn.init.kaiming_normal_(layers[-1].weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layers[-1].bias)
                layers += [nn.BatchNorm2d(outgoing), nn.ReLU(inplace=True)]
                incoming = outgoing
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2, ceil_mode=True))
        self.convolutions = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(incoming, K)
        nn.init.normal_(self.fc.weight, std=0.01)
        nn.init.zeros_(self.fc.bias)

    def features(self, x: Tensor) -> Tensor:
        return self.avgpool(self.convolutions(x)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


def vgg13(K: int, channels: int = 3, width: float = 1.0, seed: int = 0) -> nn.Module:
    r"""The ten convolutional layers of VGG13 with batch normalisation, the mean over positions, and one linear layer.

    Five blocks of two 3x3 convolutions have :math:`64w, 128w, 256w, 512w` and :math:`512w` feature maps and end in a
    max-pooling that halves the resolution. Where it is odd, the pooling rounds up, so that at least one pixel of any
    image is left; for sides that are multiples of 32 this changes nothing. The non-negative features
    :math:`h(x) \in \mathbb R^{512w}` go into `fc`, the only fully connected layer; `model.features(x)` returns them.

    Source: Simonyan & Zisserman (2015), configuration B; Nguyen et al. (2023), their published code.

    Parameters
    ----------
    K, channels, width, seed
        As for :func:`resnet18`. The initial weights are normal with variance 2 over the fan-out in the convolutions,
        N(0, 0.01²) in `fc`; biases are 0.

    Raises
    ------
    ValueError
        As :func:`resnet18`.

    Examples
    --------
    >>> model = vgg13(K=10, width=1 / 16)
    >>> model.fc
    Linear(in_features=32, out_features=10, bias=True)
    """
    _check_sizes(K, channels, width, 64)
    widths = [round(planes * width) for planes in (64, 128, 256, 512, 512)]
    with _seeded(seed):
        return _VGG(widths, K, channels)


@contextlib.contextmanager
def _seeded(seed: int):
    """Set PyTorch's CPU generator to `seed`, and restore it afterwards; layers are made on the CPU."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


def _check_sizes(K: int, channels: int, width: float, maps: int) -> None:
    checks.integers(2, K=K)
    checks.positive_integers(channels=channels)
    if not 1 / maps <= width < float("inf"):
        raise ValueError(f"width = {width!r}: at least 1/{maps} is needed, which is one feature map in the first block")


class _Block(nn.Module):
    """Two 3x3 convolutions with batch normalisation beside a shortcut that has no parameters."""

    def __init__(self, incoming: int, outgoing: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(incoming, outgoing, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outgoing)
        self.conv2 = nn.Conv2d(outgoing, outgoing, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outgoing)
        self.stride, self.new_maps = stride, outgoing - incoming

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]  # and zeros for the maps that are new
        return torch.relu(out + nn.functional.pad(shortcut, (0, 0, 0, 0, 0, self.new_maps)))


class ResNet20(nn.Module):
    """Stem, three stages of three blocks, the mean over positions, and a head of linear maps with ReLUs between."""

    def __init__(self, K: int, channels: int, widths: list[int], head_layers: int, head_width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        incoming = widths[0]
        for position, outgoing in enumerate(widths):
            blocks = [_Block(incoming, outgoing, 2 if position else 1)]
            blocks += [_Block(outgoing, outgoing, 1) for _ in range(2)]
            self.add_module(f"layer{position + 1}", nn.Sequential(*blocks))
            incoming = outgoing
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        sizes = [incoming, *[head_width] * (head_layers - 1), K]
        self.head = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """What the head reads: the mean over positions of the last maps."""
        maps = torch.relu(self.bn1(self.conv1(x)))
        return self.avgpool(self.layer3(self.layer2(self.layer1(maps)))).flatten(1)

    def layers(self, x: Tensor) -> list[Tensor]:
        """The features, and the output of each layer of the head; the scores are the last."""
        found = [self.features(x)]
        for position, W in enumerate(self.head):
            found.append(W(torch.relu(found[-1]) if position else found[-1]))
        return found

    def forward(self, x: Tensor) -> Tensor:
        """The scores."""
        return self.layers(x)[-1]


def resnet20(
    K: int, channels: int = 3, width: float = 1.0, head_layers: int = 1, head_width: int = 64, seed: int = 0
) -> nn.Module:
    r"""ResNet20 for small images, with a multilayer perceptron without biases on top.

    .. math:: f(x) = W_L \sigma(W_{L-1} \sigma(\cdots W_1 \mathcal B(x))), \qquad \sigma = \mathrm{ReLU}

    The backbone :math:`\mathcal B` is a 3x3 convolution, three stages `layer1` to `layer3` of three residual blocks
    with :math:`16w, 32w` and :math:`64w` feature maps, of which the last two halve the resolution, and the mean over
    positions. Shortcuts have no parameters: where the shape changes they skip every other pixel and add maps of zeros.
    The backbone ends in a ReLU, so that :math:`H_1 = \mathcal B(x)` is non-negative.

    `model.features(x)` is :math:`H_1` as rows `(N, 64w)`; `model.layers(x)` is the list :math:`H_1, \tilde H_2, \dots,
    \tilde H_{L+1}`, whose last entry is the scores; `model.head` holds the matrices :math:`W_1, \dots, W_L`.

    Source: He et al. (2016), section 4.2; Súkeník et al. (2024), section 3, who print neither the initial weights nor
    the kind of shortcuts.

    Parameters
    ----------
    K
        Number of classes.
    channels
        Of an image: 1 for grey, 3 for colour.
    width
        Multiplier :math:`w` of the widths of the backbone, which are rounded to whole numbers.
    head_layers, head_width
        :math:`L`, and the width of the L - 1 hidden layers of the head.
    seed
        Of the initial weights, drawn on the CPU: in the backbone normal with variance 2 over the fan-in, in the head
        PyTorch's default, which is uniform with variance 1/3 over the fan-in.

    Raises
    ------
    ValueError
        If `K` is below 2, a number is not a positive integer, or `width` leaves no feature map.

    Examples
    --------
    >>> model = resnet20(K=10, head_layers=3, head_width=32)
    >>> [tuple(W.weight.shape) for W in model.head]
    [(32, 64), (32, 32), (10, 32)]
    """
    _check_sizes(K, channels, width, 16)
    checks.positive_integers(head_layers=head_layers, head_width=head_width)
    with _seeded(seed):
        return ResNet20(K, channels, [round(maps * width) for maps in (16, 32, 64)], head_layers, head_width)
