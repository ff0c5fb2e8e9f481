"""torchvision, importable even beside a torch for which its compiled operators were not built.

The wheels of torchvision on PyPI are built for CUDA. Beside a CPU-only torch their operators do not load, and
`import torchvision` stops at "operator torchvision::nms does not exist", although data sets, transforms and models
need none of them. Declaring the missing schemas is enough. Everything in this book imports torchvision from here::

    from lib.data.vision import torchvision
"""

import torch

try:
    import torchvision
except RuntimeError as error:
    if "torchvision::" not in str(error):
        raise
    # The schemas live as long as this object does. Calling one of them fails: there is no kernel behind it.
    _schemas = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, _name):
            _schemas.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

__all__ = ["torchvision"]
