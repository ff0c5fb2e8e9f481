"""The deep networks of the book."""

from __future__ import annotations

import torch
from torch import nn

from lib.vision import torchvision


class _ResNet(torchvision.models.ResNet):
    """torchvision's ResNet of basic blocks with every width multiplied, and the stem and the head of small images."""

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

    Its residual blocks, in the paper's count of four, are `layer1` to `layer4`, with :math:`64w, 128w, 256w` and
    :math:`512w` feature maps; the last three halve the resolution. `avgpool` averages the maps of `layer4` over
    positions, and the features :math:`h(x) \in \mathbb R^{512w}` of neural collapse are what comes out of it and goes
    into `fc`. They are not negative, for the last operation of a block is a ReLU.

    Parameters
    ----------
    K
        Number of classes.
    channels
        Of an image: 1 for grey, 3 for colour.
    width
        Multiplier :math:`w` of all widths, which are rounded to whole numbers.
    bias
        Whether the last layer has one.
    seed
        Of the initial weights, which are torchvision's and drawn on the CPU: one seed is one network, on any device.

    Raises
    ------
    ValueError
        If `K` is below 2, `channels` below 1, or `width` not a positive number that leaves one feature map.

    Source: He et al. (2016); Tirer & Bruna, Figures 5 and 10, who name the network and not its stem.
    """
    if not isinstance(K, int) or K < 2:
        raise ValueError(f"K = {K!r}: at least 2 classes are needed")
    if not isinstance(channels, int) or channels < 1:
        raise ValueError(f"channels = {channels!r}: a positive integer is needed")
    if not 1 / 64 <= width < float("inf"):
        raise ValueError(f"width = {width!r}: at least 1/64 is needed, which is one feature map in the first block")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return _ResNet(K, channels, width, bias)
