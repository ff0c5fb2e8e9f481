"""Rows of a table against plain NumPy on random problems, what the head itself says, and how rows are printed."""

import json
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

import collapsemetrics as metrics
from collapsemetrics import cka, measure
from small_network import network, samples

#: K, d, and by how much samples lie farther from the origin than from each other.
SHAPES = [(3, 5, 0.0), (4, 40, 0.0), (9, 4, 0.0), (2, 12, 1e4), (6, 30, 1e4)]


def problem(seed):
    """A linear model, and features of classes of unequal sizes: to train on, to test, and of no class."""
    rng = np.random.default_rng(seed)
    K, d, offset = SHAPES[seed % len(SHAPES)]
    sizes = rng.integers(2, 8, size=K)
    y = rng.permutation(np.repeat(np.arange(K), sizes))
    centres = offset + rng.standard_normal((K, d))
    H, test = (centres[y] + rng.standard_normal((len(y), d)) for _ in range(2))
    head = nn.Linear(d, K, dtype=torch.float64)
    head.weight.data = torch.from_numpy(rng.standard_normal((K, d)))
    head.bias.data = -head.weight.data @ torch.full((d,), offset).double()
    return head, H, test, y


def batches(H, y, size=7):
    H, y = torch.as_tensor(H), torch.as_tensor(y)
    return list(zip(H.split(size), y.split(size), strict=True))


def means_of(H, y):
    return np.array([H[y == k].mean(0) for k in range(y.max() + 1)])


def lengths_and_angles(M):
    """Papyan, Han & Donoho: coefficient of variation of the lengths, mean deviation of the cosines from -1/(K-1)."""
    K, lengths = len(M), [np.sqrt((row**2).sum()) for row in M]
    pairs = [(a, b) for a in range(K) for b in range(K) if a != b]
    cosines = [(M[a] * M[b]).sum() / lengths[a] / lengths[b] for a, b in pairs]
    return np.std(lengths) / np.mean(lengths), np.mean([abs(cosine + 1 / (K - 1)) for cosine in cosines])


def test_angles_of_more_classes_than_are_in_memory_at_a_time_and_of_several_runs_are_those_of_all_pairs():
    means = np.random.default_rng(0).standard_normal((2, 1100, 5))
    directions = means / np.linalg.norm(means, axis=2, keepdims=True)
    expected = [np.abs((u @ u.T)[~np.eye(1100, dtype=bool)] + 1 / 1099).mean() for u in directions]
    assert metrics.nc2_angles(torch.from_numpy(means)).tolist() == pytest.approx(expected, rel=1e-12)


def alpha_by_hand(H):
    values = np.linalg.svd(H - H.mean(0), compute_uv=False) ** 2
    values = values[values > 1e-10 * values[0]][3:100]
    if len(values) < 2:
        return np.nan
    ranks = np.arange(4, 4 + len(values))
    return -np.polyfit(np.log(ranks), np.log(values), 1, w=ranks**-0.5)[0]  # NumPy squares the weights


def nearest_by_hand(H, M):
    return np.array([((M - row) ** 2).sum(1).argmin() for row in H])


def by_hand(head, H, test, y):
    W, b = head.weight.detach().numpy(), head.bias.detach().numpy()
    M = means_of(H, y)
    norms, angles = lengths_and_angles(M - M.mean(0))
    head_norms, head_angles = lengths_and_angles(W)
    shares = np.linalg.svd(H, compute_uv=False)
    shares = shares / shares.sum()
    found = {
        "nc2_norms": norms,
        "nc2_angles": angles,
        "nc2_norms_head": head_norms,
        "nc2_angles_head": head_angles,
        "nc0": np.linalg.norm(sum(W)) / np.sqrt((W**2).sum()),
        "effective_rank": np.exp(-sum(share * np.log(share) for share in shares if share > 0)),
        "alpha_req": alpha_by_hand(H),
    }
    for prefix, part in (("", H), ("test_", test)):
        decided, near = np.array([(W @ row + b).argmax() for row in part]), nearest_by_hand(part, M)
        found[f"{prefix}accuracy"] = (decided == y).mean()
        found[f"{prefix}ncm_accuracy"] = (near == y).mean()
        found[f"{prefix}nc4"] = (decided != near).mean()
    return found


@pytest.mark.parametrize("seed", range(30))
def test_every_row_is_its_definition_in_numpy(seed):
    head, H, test, y = problem(seed)
    (row,) = measure(head, batches(H, y), nc4=True, details=True, test_loader=batches(test, y))
    expected = by_hand(head, H, test, y)
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("seed", range(30))
def test_the_worst_class_and_pair_are_those_of_the_largest_ratio_of_variance_to_distance(seed):
    head, H, _, y = problem(seed)
    M, K = means_of(H, y), y.max() + 1
    variances = [((H[y == k] - M[k]) ** 2).sum(1).mean() for k in range(K)]
    pairs = {}
    for a in range(K):
        for b in range(a + 1, K):
            pairs[a, b] = (variances[a] + variances[b]) / 2 / ((M[a] - M[b]) ** 2).sum()
    of_class = [sum(value for pair, value in pairs.items() if k in pair) / (K - 1) for k in range(K)]
    worst = measure(head, batches(H, y)).worst("penultimate")
    assert worst["class"] == np.argmax(of_class) and worst["pair"] == max(pairs, key=pairs.get)
    assert worst["class_cdnv"] == pytest.approx(max(of_class), rel=1e-8)
    assert worst["pair_cdnv"] == pytest.approx(max(pairs.values()), rel=1e-8)


def test_the_worst_has_the_labels_of_the_samples_and_is_not_known_of_a_table_from_a_file(tmp_path):
    (x, y), wide = samples(), nn.Linear(6, 100)
    x[y == 1] = x[y == 2] + 0.01
    found = measure(wide, [(x, torch.tensor([3, 50, 98])[y])], missing="skip")
    assert found.worst("penultimate")["pair"] == (50, 98)
    found.save(tmp_path / "found.json")
    with pytest.raises(ValueError, match="layer = 'penultimate'"):
        metrics.Measures.load(tmp_path / "found.json").worst("penultimate")


def test_float32_features_of_fewer_samples_than_dimensions_have_no_rank_from_rounding():
    H = torch.randn(60, 300, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -2, 300)
    y = torch.arange(60) % 3
    (row,) = measure(nn.Linear(300, 3), batches(H, y), details=True)
    assert row["effective_rank"] == pytest.approx(metrics.effective_rank(torch.linalg.svdvals(H)).item(), rel=1e-4)
    assert row["alpha_req"] == pytest.approx(alpha_by_hand(H.double().numpy()), rel=1e-3)


def test_the_accuracy_of_the_nearest_mean_is_measured_of_every_layer():
    model, (x, y), (test, labels) = network().double(), samples(), samples(seed=1)
    x, test = x.double(), test.double()
    found = measure(model, [(x, y)], ["0", "1", "penultimate"], nc4=True, test_loader=[(test, labels)])
    with torch.no_grad():
        features = [model[:1](part) for part in (x, test)]
        after = [model[:2](part) for part in (x, test)]
    for row, (H, H_test) in zip(found, (features, after, after), strict=True):
        M = means_of(H.numpy(), y.numpy())
        assert row["ncm_accuracy"] == (nearest_by_hand(H.numpy(), M) == y.numpy()).mean()
        assert row["test_ncm_accuracy"] == (nearest_by_hand(H_test.numpy(), M) == labels.numpy()).mean()
    for column in ("accuracy", "test_accuracy", "nc4", "test_nc4", "nc3"):
        assert [row[column] is None for row in found] == [True, True, False], column


# What the head itself says --------------------------------------------------------------------------------------------


class Cosine(nn.Linear):
    def forward(self, h):
        directions = nn.functional.normalize(self.weight, dim=1)
        return 10 * nn.functional.normalize(h, dim=1) @ directions.T


class Adapted(nn.Linear):
    """A frozen layer with an update of rank one beside it."""

    def __init__(self, d, K):
        super().__init__(d, K)
        self.down, self.up = nn.Linear(d, 1, bias=False), nn.Linear(1, K, bias=False)

    def forward(self, h):
        return super().forward(h) + self.up(self.down(3 * h))


class Weighted(nn.Linear):
    def forward(self, h):
        return super().forward(h) * torch.tensor([1.0, 5.0, 0.2])


@pytest.mark.parametrize("kind", [Cosine, Adapted, Weighted])
def test_nc4_and_accuracy_come_from_the_scores_of_the_head_itself(kind):
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), kind(8, 3)), samples()
    with torch.no_grad():
        H, decided = model[:2](x).numpy(), model(x).argmax(1).numpy()
    near = nearest_by_hand(H, means_of(H, y.numpy()))
    W, b = model[2].weight.detach().numpy(), model[2].bias.detach().numpy()
    assert ((H @ W.T + b).argmax(1) != decided).any(), "weight and bias alone would say something else"
    found = measure(model, batches(x, y), nc4=True, head="2", test_loader=[(x, y)])
    for prefix in ("", "test_"):
        assert found[0][f"{prefix}nc4"] == (decided != near).mean()
        assert found[0][f"{prefix}accuracy"] == (decided == y.numpy()).mean()
    assert "is no plain linear layer" in str(found) and "its scores are not W h + b" in str(found)


def test_a_head_that_gives_w_h_plus_b_is_plain_whatever_its_class_and_precision():
    (x, y), model = samples(), network()
    model[2] = Adapted(8, 3)
    nn.init.zeros_(model[2].up.weight)  # as adapters begin
    for given, inputs in ((model, x), (network().bfloat16(), x.bfloat16()), (network().half(), x.half())):
        assert "plain" not in str(measure(given, [(inputs, y)], nc4=True, head="2"))


def test_a_head_named_beside_the_one_that_the_model_returns_is_measured_by_its_own_scores():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, h):
            self.other(h)
            return self.main(h)

    torch.manual_seed(0)
    model, (x, y) = Two(), samples()
    with torch.no_grad():
        right = {name: (model.get_submodule(name)(x).argmax(1) == y).double().mean() for name in ("main", "other")}
    assert right["main"] != right["other"]
    for name, expected in right.items():
        assert measure(model, [(x, y)], head=name)[0]["accuracy"] == pytest.approx(expected.item())


def test_a_head_of_zeros_has_nothing_to_compare_with_and_a_note_says_so():
    model, (x, y) = network(), samples()
    nn.init.zeros_(model[2].weight)
    found = measure(model, [(x, y)], nc4=True, details=True, test_loader=[(x, y)])
    with_head = ("nc3", "duality", "nc4", "accuracy", "test_nc4", "test_accuracy", "nc0", "nc2_norms_head")
    assert all(found[0].get(column) is None for column in with_head)
    assert found[0]["ncm_accuracy"] > 0 and "the weight of the head '2' is zero" in str(found)


def test_labels_of_test_samples_that_do_not_fit_are_refused_as_those_of_training_are():
    model, (x, y) = network(), samples()
    for wrong in (torch.eye(3)[y].long(), y + 3):
        with pytest.raises(ValueError, match="^test_loader: .* y has"):
            measure(model, [(x, y)], test_loader=[(x, wrong)])


# Samples of none of the classes ---------------------------------------------------------------------------------------


def area_by_hand(inside, outside):
    return np.mean([(a > b) + (a == b) / 2 for a in inside for b in outside])


def areas_by_hand(W, b, H, inside, outside):
    """NECO of Ammar et al. along min(K, d) - 1 directions, and NCI of Liu & Qin without the norm of the feature."""
    centre, neco, nci = H.mean(0), [], []
    directions = np.linalg.svd(H - centre)[2][: min(W.shape) - 1]
    for part in (inside, outside):
        centred = part - centre
        lengths = np.sqrt((centred**2).sum(1))
        neco.append(np.sqrt(((centred @ directions.T) ** 2).sum(1)) / lengths)
        nci.append((centred * W[(part @ W.T + b).argmax(1)]).sum(1) / lengths)
    return {"auroc_neco": area_by_hand(*neco), "auroc_nci": area_by_hand(*nci)}


@pytest.mark.parametrize("seed", range(30))
def test_how_well_test_samples_are_told_from_others_is_the_definition_in_numpy(seed):
    head, H, test, y = problem(seed)
    outside = H.mean(0) + 2 * np.random.default_rng(100 + seed).standard_normal((11, H.shape[1]))
    W, b = head.weight.detach().numpy(), head.bias.detach().numpy()
    loaders = {"test_loader": batches(test, y), "outside_loader": list(torch.from_numpy(outside).split(4))}
    (row,) = measure(head, batches(H, y), **loaders)
    expected = areas_by_hand(W, b, H, test, outside)
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-9)


def test_samples_orthogonal_to_collapsed_classes_are_told_apart_without_fail_and_their_like_not_at_all():
    head, y = nn.Linear(6, 3, bias=False), torch.arange(3).repeat(4)
    head.weight.data = torch.eye(6)[:3] - torch.eye(6)[:3].mean(0)
    H = torch.eye(6)[y]
    for outside, area in ((torch.eye(6)[3:] + 1 / 3, 1), (H, 0.5)):
        (row,) = measure(head, [(H, y)], test_loader=[(H, y)], outside_loader=[outside])
        assert row["auroc_neco"] == row["auroc_nci"] == area


def test_of_the_layers_only_what_the_head_reads_is_told_from_others_and_only_beside_test_samples():
    model, (x, y), given = network(), samples(), {"test_loader": [samples(seed=1)], "outside_loader": [-samples()[0]]}
    found = measure(model, [(x, y)], ["0", "penultimate"], **given)
    assert ["auroc_neco" in row and "auroc_nci" in row for row in found] == [False, True]
    assert "auroc_nci" in str(found)
    for name in given:
        assert "auroc_nci" not in measure(model, [(x, y)], **{name: given[name]})[0]


def test_labels_of_positions_are_told_from_nothing():
    (x, y), model = samples(), nn.Conv2d(6, 3, 1)
    maps = x.view(2, 3, -1, 6).permute(0, 3, 1, 2), y.view(2, 3, -1)
    (row,) = measure(model, [maps], test_loader=[maps], outside_loader=[maps])
    assert row["nc5"] > 0 and "auroc_nci" not in row


def test_the_weight_that_a_sample_is_compared_with_is_that_of_the_score_of_the_head_itself():
    (x, y), outside = samples(), samples(seed=2)[0]
    torch.manual_seed(0)
    head = Weighted(6, 3)
    (row,) = measure(head, [(x, y)], head=head, test_loader=[(x, y)], outside_loader=[outside])
    centre, W, values = x.mean(0), head.weight.detach(), []
    for part in (x, outside):
        decided = head(part).argmax(1)
        assert (decided != (part @ W.T + head.bias).argmax(1)).any()
        values.append([((h - centre) @ W[k] / (h - centre).norm()).item() for h, k in zip(part, decided, strict=True)])
    assert row["auroc_nci"] == pytest.approx(area_by_hand(*values), abs=1e-3)


# Two layers -----------------------------------------------------------------------------------------------------------


def hsic_by_hand(X, Y):
    """Mean over all quadruples of samples, times n (n - 3)."""
    K, L, n = X @ X.T, Y @ Y.T, len(X)
    found = []
    for i, j, q, r in permutations(range(n), 4):
        of_K, of_L = (M[i, j] + M[q, r] - M[i, q] - M[j, r] for M in (K, L))
        found.append(of_K * of_L / 4)
    return n * (n - 3) * np.mean(found)


@pytest.mark.parametrize("seed", range(30))
def test_cka_is_that_of_all_quadruples_of_samples_in_each_batch(seed):
    rng = np.random.default_rng(seed)
    d, offset = (2, 9)[seed % 2], (0.0, 1e3)[seed % 3 == 0]
    model = nn.Sequential(nn.Linear(d, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    model[0].bias.data -= model[0].weight.data.sum(1) * offset  # or all would be saturated
    x = torch.from_numpy(rng.standard_normal((16, d)) + offset)
    parts = x.split([6, 7, 3])  # the last is too small
    with torch.no_grad():
        pairs = [(part.numpy(), model[:2](part).numpy()) for part in parts[:2]]
    of_both = sum(hsic_by_hand(X, Y) for X, Y in pairs)
    of_each = [sum(hsic_by_hand(pair[side], pair[side]) for pair in pairs) for side in (0, 1)]
    found = cka(nn.Sequential(nn.Identity(), model), [(part, None) for part in parts], "0", "1.1")
    assert found == pytest.approx(of_both / np.sqrt(of_each[0] * of_each[1]), rel=1e-6, abs=1e-9)


def test_cka_of_features_without_relation_is_zero_on_average_in_small_batches_too():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Identity(), nn.Identity()

        def forward(self, one, other):
            return self.one(one), self.other(other)

    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(500, 2, 8, 20, generator=generator)
    loader = [((one, other), None) for one, other in parts]
    assert abs(cka(Pair(), loader, "one", "other")) < 0.02  # the biased estimate is 0.7
    assert cka(Pair(), loader, "one", "one") == pytest.approx(1)


def test_cka_takes_the_input_of_the_head_and_leaves_the_model_as_it_was():
    model, loader = network(), batches(*samples())
    model.train()
    before = torch.get_rng_state()
    assert cka(model, loader, "1", "penultimate") == pytest.approx(1)
    assert model.training and not model[1]._forward_hooks and torch.equal(before, torch.get_rng_state())


# How rows are printed -------------------------------------------------------------------------------------------------


def lines_of(found):
    return {line.split()[0]: line.split()[1:] for line in str(found).splitlines() if line.startswith("  ")}


def test_every_measure_but_chance_has_its_best_value_beside_it_and_a_simplex_has_these():
    corners, y = torch.eye(4) - 1 / 4, torch.arange(4).repeat(5)
    head = nn.Linear(4, 4, bias=False)
    head.weight.data = corners
    found = measure(head, [(corners[y], y)], nc4=True, details=True, test_loader=[(corners[y], y)])
    lines = lines_of(found)
    assert set(lines) == {name for name, value in found[0].items() if value is not None} - {"layer", "d", "samples"}
    for name, values in lines.items():
        if name in ("nc1_chance", "nc2_of", "effective_rank", "alpha_req", "trace_ratio_debiased"):
            continue  # no question of a simplex
        arrow, best, value = values
        assert arrow == "->" and float(value) == pytest.approx(float(best), abs=1e-3), name
    assert lines["nc1_chance"] == [f"{found[0]['nc1_chance']:.3g}"] and lines["effective_rank"][:2] == ["->", "d"]
    assert float(lines["uniformity"][1]) == pytest.approx(-np.log(8 / 3) / 2, abs=1e-3)


def test_rows_stand_below_the_question_that_they_answer_and_few_of_them_unless_asked_for():
    (x, y), model = samples(), network()
    found = measure(model, [(x, y)], ["0", "penultimate"])
    headings = [line.rstrip() for line in str(found).splitlines() if line.startswith("how")]
    assert headings == ["how spread", "how even", "how aligned", "how well classified"]
    assert len(lines_of(found)) <= 16 < len(lines_of(measure(model, [(x, y)], nc4=True, details=True)))
    assert lines_of(found)["nc3"][2] == "-" and '<th scope="row">how even</th>' in found._repr_html_()
    assert lines_of(metrics.compare(found, found))["nc1"] == [
        "->",
        "0",
        *2 * [f"{found[0]['nc1']:.3g}"],
        *2 * [f"{found[1]['nc1']:.3g}"],
    ]


def test_a_file_of_an_older_version_is_loaded_printed_drawn_and_compared(tmp_path):
    row = {
        "layer": "fc",
        "d": 4,
        "samples": 6,
        "nc1": 0.5,
        "nc2_etf": 0.1,
        "uniformity": -0.3,
        "nc3": None,
        "nc4": 0.25,
    }
    old = {"K": 3, "head": "fc", "centre": "classes", "notes": ["3 classes"], "rows": [row]}
    (tmp_path / "old.json").write_text(json.dumps(old))
    found = metrics.Measures.load(tmp_path / "old.json")
    assert found == [row] and lines_of(found)["uniformity"] == ["->", "-0.549", "-0.3"]
    new = measure(nn.Linear(4, 3), [(torch.eye(4)[:3].repeat(2, 1), torch.arange(3).repeat(2))])
    new[0]["layer"] = "fc"
    assert lines_of(metrics.compare(found, new))["nc2_angles"][2] == "-"
    assert found.plot() is not None and metrics.compare(found, new).plot() is not None
