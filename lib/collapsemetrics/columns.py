"""The columns of a table of measures: their groups, their best values, and what pictures call them and the layers."""

from math import log

#: The measures in the order of a table, grouped by the question that they answer.
GROUPS = {
    "how spread": "nc1 nc1_chance dilation trace_ratio trace_ratio_debiased cdnv relative_spread",
    "how even": "nc2_etf nc2_of nc2_norms nc2_angles uniformity numerical_rank condition_number",
    "how many directions": "effective_rank alpha_req",
    "how aligned": "nc3 duality nc0 nc2_norms_head nc2_angles_head nc5",
    "how well classified": "accuracy ncm_accuracy nc4 test_accuracy test_ncm_accuracy test_nc4 auroc_neco auroc_nci",
}
MEASURES = " ".join(GROUPS.values()).split()
#: What pictures call the measures.
TITLES = {name: name.replace("_", " ").replace("ncm", "NCM").replace("nc", "NC") for name in MEASURES} | {
    "nc1_chance": "NC1, random labels",
    "trace_ratio": "ratio of traces",
    "trace_ratio_debiased": "ratio of traces, debiased",
    "cdnv": "CDNV",
    "nc2_etf": "NC2, simplex",
    "nc2_of": "NC2, orthogonal",
    "numerical_rank": "rank of the means",
    "duality": "uniform duality",
    "auroc_neco": "AUROC, NECO",
    "auroc_nci": "AUROC, NCI",
}
#: The entries of a row of :class:`~collapsemetrics.Measures`, in their order.
COLUMNS = ("layer", "d", "samples", *TITLES)


def best(column: str, K: int | None) -> str:
    """The best value of a measure, which for those of collapse is the value under collapse; empty where there is none.

    >>> best("nc1", 10), best("accuracy", 10), best("uniformity", 10), best("effective_rank", 10)
    ('-> 0', '-> 1', '-> -0.399', '-> d')
    """
    others = {"uniformity": K and round(-log(2 * K / (K - 1)) / 2, 3), "numerical_rank": K and K - 1}
    others |= {"condition_number": 1, "effective_rank": "d", "alpha_req": 1, "nc1_chance": None}
    value = others.get(column, int("accuracy" in column or "auroc" in column) if column in MEASURES else None)
    return "" if value is None else f"-> {value}"


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
