"""The columns of a table of measures, and what tables and pictures call them and the layers."""

#: The measures, in the order of a table, and what pictures call them.
TITLES = {
    "nc1": "NC1",
    "nc1_chance": "NC1, random labels",
    "dilation": "dilation",
    "trace_ratio": "ratio of traces",
    "trace_ratio_debiased": "ratio of traces, debiased",
    "cdnv": "CDNV",
    "relative_spread": "relative spread",
    "nc2_etf": "NC2, simplex",
    "nc2_of": "NC2, orthogonal",
    "uniformity": "uniformity",
    "nc3": "NC3",
    "duality": "uniform duality",
    "nc4": "NC4",
    "nc5": "NC5",
    "numerical_rank": "rank of the means",
    "condition_number": "condition number",
}
#: The entries of a row of :class:`~collapsemetrics.Measures`, in their order.
COLUMNS = ("layer", "d", "samples", *TITLES)


def named(layer: str) -> str:
    """What tables and pictures call a layer: the whole model has no name of its own.

    >>> named("layer4"), named("")
    ('layer4', 'features')
    """
    return layer or "features"


def called(layer: str, kind: str = "layer") -> str:
    """What sentences call a layer, or another kind of module.

    >>> called("fc", "head"), called("")
    ("the head 'fc'", 'the model itself')
    """
    return f"the {kind} {layer!r}" if layer else "the model itself"
