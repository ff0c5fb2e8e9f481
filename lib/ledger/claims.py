"""The ledger: every claim of every paper is declared once, measured by one chapter, and judged by a rule.

`chapters/claims.yml` says what a paper prints (its header explains the format). A chapter measures:

    ledger = claims.open("feature-collapse", profile=profile, device=device)
    ledger.check("fc-thm1-constant", measured={"K=1000": c1000, "K=50": c50})

`check` shows a table and leaves a record in the cell's output. When the book is published, the records are taken
from the executed notebooks and `render` judges them anew, so that an edit of the declaration needs no new run.
"""

import difflib
import functools
import html
import json
import math
import os
import re
import time
from pathlib import Path

import yaml

from lib.ledger import notes

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = ROOT / "chapters" / "claims.yml"
ERRATA = ROOT / "chapters" / "errata.yml"

MIME = "application/vnd.collapse.claim+json"

PAPERS = {
    "feature-collapse": "Feature collapse",
    "extended-ufm": "Extended unconstrained features",
    "memorization-dilation": "Memorization-dilation",
    "low-rank-bias": "Low-rank bias",
    "beyond": "Beyond the papers",
}
KINDS = ("theorem", "number", "figure", "question")
PROFILES = ("smoke", "laptop", "paper")
#: The data sets of the papers. Any other, the reader's own images too, stands in for one of them.
ORIGINALS = ("mnist", "fashion_mnist", "cifar10", "svhn")

#: The verdicts and the sign that goes with each (a verdict never speaks by colour alone).
VERDICTS = {
    "reproduced": "✓",
    "reproduced on substitute data": "✓",
    "supported": "✓",
    "not reproduced": "✗",
    "contradicted": "≠",
    "not supported": "✗",
    "not run": "○",
    "not written yet": "…",
}

_CLAIM_KEYS = ("id", "paper", "where", "kind", "statement", "dataset", "expect")
_ERRATUM_KEYS = ("id", "paper", "place", "printed", "corrected", "shown_by", "how", "consequence", "transcription")
_RELATIONS = ("value", "below", "above", "between", "equals", "report")


# ------------------------------------------------------------------------------------------ reading the declarations


class _Entry(dict):
    """A mapping of the file that remembers its line."""

    line = 0


class _Loader(yaml.SafeLoader):
    """YAML in which a key that stands twice in one mapping is an error, not an overwrite."""


def _mapping(loader, node):
    entry = _Entry()
    entry.line = node.start_mark.line + 1
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, (list, dict)) or key in entry:
            problem = f"the key {key!r} stands twice in one entry" if key in entry else f"{key!r} cannot be a key"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        entry[key] = loader.construct_object(value_node, deep=True)
    return entry


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _read(path):
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{line}: {getattr(error, 'problem', None) or error}") from None


def _nearest(word, known):
    close = difflib.get_close_matches(str(word), [str(name) for name in known], n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


def _top(path, document, allowed):
    if not isinstance(document, dict):
        raise ValueError(f"{path}: {' and '.join(repr(key) for key in allowed)} are needed at the top of the file")
    for key in document:
        if key not in allowed:
            raise ValueError(f"{path}: unknown entry {key!r} at the top{_nearest(key, allowed)}")
    for key in allowed:
        if not isinstance(document.get(key), list):
            raise ValueError(f"{path}: {key!r} has to be a list, not {document.get(key)!r}")
    return [document[key] for key in allowed]


def _texts(place, entry, needed, allowed):
    """The entry is a mapping, knows no other keys than `allowed`, and has text under the `needed` ones."""
    for key in entry:
        if key not in allowed:
            raise ValueError(f"{place}: unknown key {key!r}{_nearest(key, allowed)}")
    for key in needed:
        if key not in entry:
            raise ValueError(f"{place}: {key!r} is missing")
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise ValueError(f"{place}: {key!r} has to be text, not {entry[key]!r}")


def _one_of(place, key, value, known):
    if value not in known:
        raise ValueError(f"{place}: unknown {key} {value!r}; known are {', '.join(known)}{_nearest(value, known)}")


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_number(place, key, value):
    if not _is_number(value):
        hint = " (YAML reads 1e-9 as text and 1.0e-9 as a number)" if isinstance(value, str) else ""
        raise ValueError(f"{place}: {key!r} has to be a number, not {value!r}{hint}")


def _check_expectation(place, expectation):
    if not isinstance(expectation, dict):
        raise ValueError(f"{place}: an expectation is a mapping such as {{below: 1.0e-9}}, not {expectation!r}")
    for key in expectation:
        if key not in (*_RELATIONS, "abs", "rel", "printed"):
            raise ValueError(f"{place}: unknown relation {key!r}{_nearest(key, _RELATIONS)}")
    relations = [key for key in expectation if key in _RELATIONS]
    if len(relations) != 1:
        raise ValueError(f"{place}: exactly one of {', '.join(_RELATIONS)} is needed, there is {relations or 'none'}")
    relation = relations[0]
    value = expectation[relation]
    printed = expectation.get("printed", "")
    if isinstance(printed, bool) or not isinstance(printed, (int, float, str)):
        raise ValueError(f"{place}: 'printed' has to be a number or text, not {printed!r}")
    tolerances = [key for key in ("abs", "rel") if key in expectation]
    if relation == "value":
        _check_number(place, "value", value)
        if len(tolerances) != 1:
            raise ValueError(f"{place}: 'value' needs a tolerance, either 'abs' or 'rel'")
        _check_number(place, tolerances[0], expectation[tolerances[0]])
        if expectation[tolerances[0]] < 0:
            raise ValueError(f"{place}: the tolerance {tolerances[0]} = {expectation[tolerances[0]]} is negative")
    elif tolerances:
        raise ValueError(f"{place}: {tolerances[0]!r} belongs to 'value', not to {relation!r}")
    elif relation in ("below", "above"):
        _check_number(place, relation, value)
    elif relation == "between":
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError(f"{place}: 'between' needs [lower, upper], not {value!r}")
        for bound in value:
            _check_number(place, "between", bound)
        if value[0] > value[1]:
            raise ValueError(f"{place}: 'between' has its bounds the wrong way round: {value}")
    elif relation == "equals" and not isinstance(value, (bool, int, str)):
        raise ValueError(f"{place}: 'equals' needs true, false, a whole number or text; for {value!r} use 'value'")
    elif relation == "report" and value is not True:
        raise ValueError(f"{place}: 'report' takes true and nothing else, not {value!r}")


def _check_claim(place, claim):
    _texts(place, claim, ("id", "paper", "where", "kind", "statement"), _CLAIM_KEYS)
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", claim["id"]):
        raise ValueError(f"{place}: an id has lower-case letters, digits and single hyphens, unlike {claim['id']!r}")
    _one_of(place, "paper", claim["paper"], PAPERS)
    _one_of(place, "kind", claim["kind"], KINDS)
    names = claim.get("dataset", [])
    if not all(isinstance(name, str) for name in (names if isinstance(names, list) else [names])):
        raise ValueError(f"{place}: 'dataset' has to be a name or a list of names, not {names!r}")
    if "expect" not in claim:
        return
    if not isinstance(claim["expect"], dict) or not claim["expect"]:
        raise ValueError(f"{place}: 'expect' has to map each measured quantity to a relation, not {claim['expect']!r}")
    for key, expectation in claim["expect"].items():
        if not isinstance(key, str):
            raise ValueError(f"{place}: the name of a measured quantity has to be text, not {key!r} (quote it)")
        _check_expectation(f"{place}, quantity {key!r}", expectation)
    if all("report" in expectation for expectation in claim["expect"].values()):
        raise ValueError(f"{place}: every quantity is only reported, so that there is nothing to judge the claim by")


def validate(claims_path=None, errata_path=None):
    """Read and check both files. Returns ({id: claim}, {id of the claim that shows it: [errata]}, pending ids).

    ValueError for whatever is wrong with a file, naming the file, the line, the claim and what is allowed.
    """
    paths = [Path(claims_path or CLAIMS), Path(errata_path or ERRATA)]
    stamps = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)
    return _validate(*paths, stamps)


@functools.lru_cache(maxsize=8)
def _validate(claims_path, errata_path, _stamps):
    entries, pending = _top(claims_path, _read(claims_path), ("claims", "pending"))
    declared = {}
    for number, claim in enumerate(entries, 1):
        if not isinstance(claim, dict):
            raise ValueError(f"{claims_path}: entry {number} of 'claims' has to be a mapping, not {claim!r}")
        place = f"{claims_path}, line {claim.line}: claim {claim.get('id', number)!r}"
        _check_claim(place, claim)
        if claim["id"] in declared:
            raise ValueError(f"{place} is declared a second time (first in line {declared[claim['id']].line})")
        declared[claim["id"]] = claim
    for name in pending:
        if name not in declared:
            raise ValueError(f"{claims_path}: pending claim {name!r} is not declared{_nearest(name, declared)}")
        if pending.count(name) > 1:
            raise ValueError(f"{claims_path}: claim {name!r} stands twice under 'pending'")
        if "expect" in declared[name]:
            raise ValueError(
                f"{claims_path}, line {declared[name].line}: claim {name!r} is pending and has an 'expect'; "
                "take it off the list once its chapter is written"
            )
    for name, claim in declared.items():
        if "expect" not in claim and name not in pending:
            raise ValueError(
                f"{claims_path}, line {claim.line}: claim {name!r} has no 'expect'; "
                "say what is expected, or list it under 'pending'"
            )
    return declared, _errata(errata_path, declared), tuple(pending)


def _errata(path, declared):
    (entries,) = _top(path, _read(path), ("errata",))
    shown, seen = {}, {}
    for number, erratum in enumerate(entries, 1):
        if not isinstance(erratum, dict):
            raise ValueError(f"{path}: entry {number} of 'errata' has to be a mapping, not {erratum!r}")
        place = f"{path}, line {erratum.line}: erratum {erratum.get('id', number)!r}"
        _texts(place, erratum, _ERRATUM_KEYS, _ERRATUM_KEYS)
        _one_of(place, "paper", erratum["paper"], PAPERS)
        if erratum["id"] in seen:
            raise ValueError(f"{place} stands there a second time (first in line {seen[erratum['id']]})")
        seen[erratum["id"]] = erratum.line
        name = erratum["shown_by"]
        if name not in declared:
            raise ValueError(f"{place}: it is shown by {name!r}, which is not declared{_nearest(name, declared)}")
        if declared[name]["paper"] != erratum["paper"]:
            raise ValueError(f"{place}: it is shown by {name!r}, a claim of {declared[name]['paper']}")
        shown.setdefault(name, []).append(erratum)
    return shown


def declarations():
    """{id: claim} as declared, in the order of the file."""
    return validate()[0]


def pending():
    """The ids of the claims whose chapter is not written yet."""
    return validate()[2]


# ------------------------------------------------------------------------------------------------------ the verdict


def met(expectation, value):
    """Does the measured value satisfy the expectation? None where it is only reported.

    A NaN, an infinity or a value of another type satisfies nothing.
    """
    if "report" in expectation:
        return None
    if "equals" in expectation:
        wanted = expectation["equals"]
        if isinstance(wanted, bool) or isinstance(value, bool) or isinstance(wanted, str):
            return type(value) is type(wanted) and value == wanted
        return _is_number(value) and value == wanted
    if not _is_number(value):
        return False
    if "value" in expectation:
        tolerance = expectation["abs"] if "abs" in expectation else expectation["rel"] * abs(expectation["value"])
        return abs(value - expectation["value"]) <= tolerance
    if "below" in expectation:
        return value < expectation["below"]
    if "above" in expectation:
        return value > expectation["above"]
    lower, upper = expectation["between"]
    return lower <= value <= upper


def verdict(declaration, measured, profile="laptop", dataset=None, errata=()):
    """The verdict on a claim: a pure function of what is declared, what was measured, and on what.

    declaration: an entry of claims.yml. measured: {quantity: value}. errata: the errata that the claim shows.
    The `smoke` profile claims nothing. ValueError when the measured quantities are not the declared ones.
    """
    expect = declaration["expect"]
    name = declaration["id"]
    for key in measured:
        if key not in expect:
            raise ValueError(f"claim {name!r}: measured quantity {key!r} is not declared{_nearest(key, expect)}")
    for key in expect:
        if key not in measured:
            raise ValueError(f"claim {name!r}: declared quantity {key!r} is not measured{_nearest(key, measured)}")
    if profile == "smoke":
        return "not run"
    question = declaration["kind"] == "question"
    if all(met(expectation, measured[key]) is not False for key, expectation in expect.items()):
        own = declaration.get("dataset", [])
        if question:
            return "supported"
        if dataset not in (None, *ORIGINALS, *([own] if isinstance(own, str) else own)):
            return "reproduced on substitute data"
        return "reproduced"
    if errata:
        return "contradicted"
    return "not supported" if question else "not reproduced"


def _plain(name, key, value):
    """value as JSON can hold it: numpy and torch scalars become Python ones, arrays become lists."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(name, key, item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"claim {name!r}: quantity {key!r} is {type(value).__name__}; a number, a truth value or text")
    return value


class Ledger:
    """The claims that one chapter measures. Made by `claims.open`."""

    def __init__(self, paper, profile, device, dataset):
        self.paper, self.profile, self.device, self.dataset = paper, profile, str(device), dataset
        self.declared, self.errata, self.pending = validate()
        self.checked = set()
        self._last, self._taken_up = time.perf_counter(), _taken_up()

    def check(self, name, measured):
        """Judge the claim `name` by measured = {quantity: value}, show the table, and leave the record.

        ValueError for a claim that is undeclared, pending, of another paper or checked before, and for quantities
        that are not the declared ones.
        """
        declaration = self._declaration(name)
        if not isinstance(measured, dict):
            raise ValueError(f"claim {name!r}: measured has to map quantities to values, not {measured!r}")
        self._emit(declaration, {key: _plain(name, key, value) for key, value in measured.items()})

    def skip(self, name, reason):
        """The claim is not measured in this profile: verdict `not run`, with the reason."""
        declaration = self._declaration(name)
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"claim {name!r}: to skip it takes a reason, not {reason!r}")
        self._emit(declaration, {}, reason=reason)

    def _declaration(self, name):
        if name not in self.declared:
            raise ValueError(f"claim {name!r} is not declared in {CLAIMS.name}{_nearest(name, self.declared)}")
        declaration = self.declared[name]
        if declaration["paper"] != self.paper:
            raise ValueError(f"claim {name!r} is one of {declaration['paper']}, this ledger is that of {self.paper}")
        if name in self.pending:
            raise ValueError(f"claim {name!r} is pending: give it an 'expect' and take it off the list")
        if name in self.checked:
            raise ValueError(
                f"claim {name!r} is checked twice in one ledger (to measure it anew, open the ledger anew)"
            )
        return declaration

    def _emit(self, declaration, measured, reason=None):
        from IPython.display import display

        now, taken_up = time.perf_counter(), _taken_up()
        record = {
            "id": declaration["id"],
            "verdict": "not run",
            "measured": measured,
            "expected": _without_lines(declaration["expect"]),
            "chapter": os.environ.get("COLLAPSE_CHAPTER") or self.paper,
            "profile": self.profile,
            "device": self.device,
            "dataset": self.dataset,
            "seconds": round(now - self._last + taken_up - self._taken_up, 1),
        }
        if reason:
            record["reason"] = reason
        record, table = render(record, links=False)
        self.checked.add(declaration["id"])
        self._last, self._taken_up = now, taken_up
        display({MIME: record, "text/html": table, "text/plain": f"{record['id']}: {record['verdict']}"}, raw=True)


def _taken_up():
    """How many seconds the runs took that this chapter has taken up from a build before (`lib.runs.kept`)."""
    noted = notes.read(os.environ.get("COLLAPSE_NOTES") or os.devnull)
    return sum(fact["seconds"] for fact in noted.get("resumed", ()))


def _without_lines(expect):
    return {key: dict(expectation) for key, expectation in expect.items()}


def open(paper, profile="laptop", device="cpu", dataset=None):
    """The ledger of one chapter.

    paper: a key of `claims.PAPERS`. profile: smoke, laptop or paper. device: recorded as it is. dataset: the name of
    the data set, None where the claims need none. Both declaration files are checked as a whole first; ValueError
    for an unknown paper or profile, and for a damaged file.
    """
    _one_of("claims.open", "paper", paper, PAPERS)
    _one_of("claims.open", "profile", profile, PROFILES)
    return Ledger(paper, profile, device, dataset)


# ---------------------------------------------------------------------------------------------------------- records


def judge(record):
    """A record with the verdict that the declarations of now give it.

    ValueError when the claim is no longer declared, or its quantities are not those that were measured (the chapter
    has to run again).
    """
    declared, errata, _ = validate()
    name = record["id"]
    if name not in declared or "expect" not in declared[name]:
        raise ValueError(f"the record of claim {name!r} has no declaration any more{_nearest(name, declared)}")
    declaration = declared[name]
    record = {**record, "expected": _without_lines(declaration["expect"])}
    if not (record.get("reason") and not record["measured"]):  # a claim that was not skipped
        record["verdict"] = verdict(
            declaration, record["measured"], record["profile"], record["dataset"], errata.get(name, ())
        )
        record.pop("reason", None)
        if record["profile"] == "smoke":
            record["reason"] = "the smoke profile only checks that everything runs"
    return record


def render(record, links=True):
    """A record judged as :func:`judge` does, with its errors, and the HTML of its table.

    links: with links to the ledger and errata pages, as the published page wants them.
    """
    record = judge(record)
    declared, errata, _ = validate()
    return record, _table(record, declared[record["id"]], errata.get(record["id"], ()), links)


def outcome(name, record=None):
    """The verdict on a claim as its judged record has it; without a record, why there is none."""
    return "not written yet" if name in pending() else record["verdict"] if record else "not run"


def collect(notebook):
    """The records in the outputs of an executed notebook (its path, or the notebook itself), in their order."""
    if isinstance(notebook, (str, os.PathLike)):
        notebook = json.loads(Path(notebook).read_text(encoding="utf-8"))
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", ()))
    return [output["data"][MIME] for output in outputs if MIME in output.get("data", {})]


def check_sources(chapter_files):
    """Which chapter measures which claim: {id: path}, read from the code cells of the chapters' Markdown.

    ValueError, listing every problem, when a declared claim that is not pending is checked nowhere or in two places,
    when a checked or skipped one is undeclared or pending, or when an id is not written out. A chapter may skip under
    one profile what it checks under another.
    """
    declared, _, unwritten = validate()
    checked, skipped, problems = {}, {}, []
    for path in sorted(map(Path, chapter_files)):
        text = path.read_text(encoding="utf-8")
        fences = r"^(`{3,})\{code-cell\}[^\n]*\n(.*?)^\1`*\s*$"
        cells = [body for _, body in re.findall(fences, text, flags=re.MULTILINE | re.DOTALL)]
        code = "\n".join(line for cell in cells for line in cell.splitlines() if not line.lstrip().startswith("#"))
        for action, quoted in re.findall(r"\bledger\.(check|skip)\(\s*(?:name\s*=\s*)?([\"'][^\"']*[\"'])?", code):
            name = quoted[1:-1]
            if not quoted:
                problems.append(f"{path}: ledger.{action} without the claim's id written out")
            elif name not in declared:
                problems.append(f"{path}: claim {name!r} is not declared{_nearest(name, declared)}")
            elif name in unwritten:
                problems.append(f"{path}: claim {name!r} is listed as pending, yet there is a ledger.{action} for it")
            elif action == "check" and name in checked:
                problems.append(f"claim {name!r} is checked in two places: {checked[name]} and {path}")
            else:
                {"check": checked, "skip": skipped}[action][name] = path
    for name, path in skipped.items():
        if name in checked and checked[name] != path:
            problems.append(f"claim {name!r} is checked in {checked[name]} and skipped in {path}")
    for name in declared:
        if name not in unwritten and name not in checked:
            problems.append(f"claim {name!r} is declared and checked nowhere")
    if problems:
        raise ValueError("\n".join(problems))
    return checked


# ------------------------------------------------------------------------------------------------------------- HTML


def _number(value, digits=6):
    """A value as a reader wants it: a few significant digits, a true minus sign, no long lists."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        shown = ", ".join(_number(item, digits) for item in value[:6])
        return shown if len(value) <= 6 else f"{shown}, … ({len(value)} values)"
    if isinstance(value, (int, float)):
        text = f"{value:.{digits}g}" if isinstance(value, float) else str(value)
        mantissa, _, exponent = text.partition("e")
        if exponent:
            text = f"{mantissa}\u00a0×\u00a010" + str(int(exponent)).translate(
                str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
            )
        return text.replace("-", "−")
    return str(value)


def _digits(expectation):
    """How many digits of a measured value are worth showing: more where there is a number to compare them with."""
    return 6 if {"value", "printed"} & set(expectation) else 4


def _statement(text):
    """A statement as HTML, with x_i and n^L (or x_{i,j}, n^{L-1}) as indices and exponents."""
    text = html.escape(text)
    for mark, tag in (("_", "sub"), (r"\^", "sup")):
        braced = rf"(?<=[^\s(]){mark}(?:\{{([^{{}}]*)\}}|([^\W_²³]+))"
        text = re.sub(braced, lambda found, tag=tag: f"<{tag}>{found[1] or found[2]}</{tag}>", text)
    return text


def _words(expectation):
    """What is printed or expected, in words."""
    if "printed" in expectation:
        return _number(expectation["printed"])
    if "value" in expectation:
        return _number(expectation["value"])
    if "below" in expectation:
        return f"below {_number(expectation['below'])}"
    if "above" in expectation:
        return f"above {_number(expectation['above'])}"
    if "between" in expectation:
        return "{} to {}".format(*map(_number, expectation["between"]))
    if "equals" in expectation:
        return _number(expectation["equals"])
    return "—"


def _difference(expectation, value):
    """Measured minus printed, where the print is a number."""
    printed = expectation.get("printed", expectation.get("value"))
    if not (_is_number(printed) and _is_number(value)):
        return "—"
    return _number(float(f"{float(value) - printed:.2g}"))


def _badge(name):
    css = name.replace(" ", "-")
    return f'<span class="claim-badge claim-{css}"><span aria-hidden="true">{VERDICTS[name]}</span> {name}</span>'


def _cell(label, text):
    css = ' class="claim-empty"' if text == "—" else ""
    return f'<td data-label="{label}"{css}>{text}</td>'


def _table(record, declaration, errata, links):
    """The table of one claim: what is expected, what was measured, and whether they agree."""
    escape = html.escape
    name = record["id"]
    up = "../" * str(record["chapter"]).count("/")
    title = f'<a href="{up}back/ledger.html#ledger-{name}">{name}</a>' if links else name
    head = f'<p class="claim-head"><strong>{title}</strong> {_badge(record["verdict"])}</p>'
    where = f"{PAPERS[declaration['paper']]}, {escape(declaration['where'])}"
    said = f'<p class="claim-statement">{_statement(declaration["statement"])} <em>({where})</em></p>'
    if not record["measured"]:
        body = f'<p class="claim-reason">Not run: {escape(record["reason"])}.</p>'.replace("..", ".")
    else:
        rows = []
        for key, expectation in declaration["expect"].items():
            value = record["measured"][key]
            sign = {True: ("✓", "met"), False: ("✗", "not met"), None: ("·", "reported only")}[met(expectation, value)]
            mark = f'<span role="img" aria-label="{sign[1]}" title="{sign[1]}">{sign[0]}</span>'
            cells = [
                _cell(label, escape(text))
                for label, text in (
                    ("expected", _words(expectation)),
                    ("measured", _number(value, _digits(expectation))),
                    ("difference", _difference(expectation, value)),
                )
            ]
            rows.append(f'<tr><th scope="row">{_statement(key)}</th>{"".join(cells)}{_cell("met", mark)}</tr>')
        labels = ("quantity", "printed or expected", "measured", "difference", "met")
        columns = "".join(f'<th scope="col">{label}</th>' for label in labels)
        body = f'<table class="claim-table"><thead><tr>{columns}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
        if record.get("reason"):
            body += f'<p class="claim-reason">No verdict: {escape(record["reason"])}.</p>'
    notes = []
    if record["dataset"]:
        notes.append(f"data: {escape(str(record['dataset']))}")
    if record["verdict"] == "contradicted":
        for erratum in errata:
            notes.append(_erratum_link(erratum, up) if links else f"erratum {escape(erratum['id'])}")
    body += f'<p class="claim-note">{"; ".join(notes)}</p>' if notes else ""
    return f'<div class="claim" id="claim-{name}" data-verdict="{record["verdict"]}">{head}{said}{body}</div>'


# ------------------------------------------------------------------------------------------------------------ pages


def ledger_page(records, paper_records=None):
    """The ledger as an HTML fragment without blank lines, for the marker in chapters/back/ledger.md.

    records: those of the executed chapters, judged anew here. paper_records: {id: record} of the `paper` profile, as
    `lib.book.records.read` finds them; without any, their column is left out. Every declared claim has a row, also one
    that no chapter has measured.
    """
    declared, errata, _ = validate()
    live = {record["id"]: judge(record) for record in records}
    kept = paper_records or {}
    rows, counts = [], dict.fromkeys(VERDICTS, 0)
    for name, declaration in declared.items():
        record = live.get(name)
        result = outcome(name, record)
        counts[result] += 1
        rows.append(_row(declaration, result, record, kept, errata.get(name, ())))
    tally = "".join(
        f'<li><a href="?verdict={name.replace(" ", "+")}" data-verdict="{name}">{_badge(name)} '
        f"<strong>{number}</strong></a></li>"
        for name, number in counts.items()
        if number
    )
    titles = ("Claim", "Statement", "Verdict", *(["Paper profile"] if kept else []))
    columns = "".join(f'<th scope="col">{text}</th>' for text in titles)
    return "\n".join(
        [
            f'<ul class="ledger-tally">{tally}</ul>',
            '<form class="ledger-filters" hidden>',
            _select("paper", "Paper", PAPERS),
            _select("kind", "Kind", {kind: kind for kind in KINDS}),
            _select("verdict", "Verdict", {name: name for name, number in counts.items() if number}),
            '<label for="ledger-text">Text <input type="search" id="ledger-text" autocomplete="off"></label>',
            f'<output id="ledger-shown" aria-live="polite">{len(rows)} of {len(rows)} claims</output>',
            "</form>",
            f'<table id="ledger"><thead><tr>{columns}</tr></thead>',
            "<tbody>",
            *rows,
            "</tbody></table>",
        ]
    )


def _select(key, label, options):
    inner = "".join(f'<option value="{value}">{text}</option>' for value, text in options.items())
    all_ = '<option value="">all</option>'
    return (
        f'<label for="ledger-{key}">{label} <select id="ledger-{key}" autocomplete="off">{all_}{inner}</select></label>'
    )


def _row(declaration, result, record, paper_records, errata):
    escape = html.escape
    name, paper, kind = declaration["id"], declaration["paper"], declaration["kind"]
    link = f'<a href="../{record["chapter"]}.html#claim-{name}">{name}</a>' if record else name
    claim = f"{link}<small>{PAPERS[paper]}</small><small>{escape(declaration['where'])}</small><small>{kind}</small>"
    kept = paper_records.get(name)
    shown = _badge(result)
    if record and record.get("reason"):
        shown += f"<small>{escape(record['reason'])}</small>"
    if record and result != "not run":
        shown += f"<small>{record['profile']} profile</small>" + (_values(record) if kept else "")
    for erratum in errata:
        shown += f"<small>{_erratum_link(erratum, '../')}</small>"
    cells = _cell("Claim", claim) + _cell("Statement", _statement(declaration["statement"])) + _cell("Verdict", shown)
    if paper_records:
        cells += _cell("Paper profile", _kept(kept) if kept else "—")
    return f'<tr id="ledger-{name}" data-paper="{paper}" data-verdict="{result}" data-kind="{kind}">{cells}</tr>'


def _kept(record):
    """What the ledger says about a record of the `paper` profile: verdict, what is outdated, values, when and where."""
    escape = html.escape
    notes = [f"{record['finished'][:10]}, {escape(str(record['machine']['name']))}"]
    if record["dataset"]:
        notes.append(f"data: {escape(str(record['dataset']))}")
    if record.get("reason"):
        notes.insert(0, escape(record["reason"]))
    if record["outdated"]:
        notes.append(f'<span aria-hidden="true">⚠</span> outdated: {escape("; ".join(record["outdated"]))}')
    lines = "".join(f"<small>{note}</small>" for note in notes)
    return f'{_badge(record["verdict"])}{_values(record)}<div class="claim-record">{lines}</div>'


def _values(record):
    """Measured quantities, one to a line; more than three wait to be unfolded."""
    lines = [
        f"<small>{_statement(key)} = {html.escape(_number(value, _digits(record['expected'].get(key, ()))))}</small>"
        for key, value in record["measured"].items()
    ]
    shown = f'<div class="claim-record">{"".join(lines)}</div>' if lines else ""
    return f"<details><summary>{len(lines)} values</summary>{shown}</details>" if len(lines) > 3 else shown


# ------------------------------------------------------------------------------------------------------------- errata


def _erratum_link(erratum, up):
    """A link to the section of an erratum; `up` leads from the page to the folder `chapters`."""
    name = html.escape(erratum["id"])
    return f'<a href="{up}errata/{erratum["paper"]}.html#erratum-{name}">erratum {name}</a>'


def _all_errata():
    return {erratum["id"]: erratum for shown in validate()[1].values() for erratum in shown}


def _events(text):
    """What a Markdown page has outside of its fences: (kind, name) for anchors, headings, markers and code cells."""
    fence = ""
    for line in text.splitlines():
        opened = re.match(r"(`{3,}|~{3,})(.*)", line)
        if fence:
            if opened and opened[1].startswith(fence) and not opened[2].strip():
                fence = ""
        elif opened:
            fence = opened[1]
            if opened[2].startswith("{code-cell}"):
                yield "cell", ""
        elif found := re.match(r"\(erratum-([^)\s]+)\)=\s*$", line):
            yield "anchor", found[1]
        elif found := re.match(r"(#+)\s+(.*?)\s*$", line):
            yield f"h{len(found[1])}", found[2]
        elif found := _MARKER.match(line):
            yield found[1], found[2]


_MARKER = re.compile(r"^<!--[ \t]*(erratum|consequence)[ \t]+(\S+)[ \t]*-->[ \t]*$", re.MULTILINE)


def check_errata(chapter_files):
    """The heading of each erratum's section: {id: Markdown}, read from the chapters' Markdown.

    An erratum has one section on the page of its paper, chapters/errata/<paper>.md:

        (erratum-ID)=
        ## What was found
        <!-- erratum ID -->       becomes the printed and the corrected statement (`expand_errata`)
        at least one code cell that decides it
        <!-- consequence ID -->

    ValueError, listing every problem, when one is missing, double, elsewhere, incomplete or unknown.
    """
    headings, problems = errata_sections(chapter_files)
    if problems:
        raise ValueError("\n".join(problems))
    return headings


def errata_sections(chapter_files):
    """The headings of `check_errata` as far as they are there, and the list of its problems."""
    known, problems, headings = _all_errata(), [], {}
    for path in sorted(map(Path, chapter_files)):
        events = list(_events(path.read_text(encoding="utf-8")))
        for number, (kind, name) in enumerate(events):
            if kind not in ("anchor", "erratum", "consequence"):
                continue
            if name not in known:
                problems.append(f"{path}: erratum {name!r} is not in {ERRATA.name}{_nearest(name, known)}")
            elif path != (home := _errata_file(known[name])):
                problems.append(f"{path}: erratum {name!r} belongs to {home}")
            elif kind == "anchor":
                if name in headings:
                    problems.append(f"{path}: erratum {name!r} has two sections")
                after = events[number + 1 :]
                headings[name] = after[0][1] if after and after[0][0] == "h2" else ""
                if not headings[name]:
                    problems.append(f"{path}: erratum {name!r} has no heading '## ...' right after its anchor")
                ends = [at for at, (other, _) in enumerate(after[1:], 1) if other in ("anchor", "h1", "h2")]
                section = [event for event in after[: ends[0] if ends else None] if event[0][0] != "h"]
                first, *cells, last = section if len(section) > 1 else [None, None]
                if (first, last) != (("erratum", name), ("consequence", name)) or set(cells) != {("cell", "")}:
                    problems.append(
                        f"{path}: the section of erratum {name!r} has to hold '<!-- erratum {name} -->', "
                        f"at least one code cell and '<!-- consequence {name} -->', in this order and once each"
                    )
    for name, erratum in known.items():
        if name not in headings:
            problems.append(f"{_errata_file(erratum)}: erratum {name!r} has no section, or no anchor (erratum-{name})=")
    return headings, problems


def _errata_file(erratum):
    return ERRATA.with_suffix("") / f"{erratum['paper']}.md"


def expand_errata(text, records):
    """The Markdown of an errata page with its markers replaced by what errata.yml says; other text is as it was.

    records: {id of a claim: its record}; the claim that shows an erratum is linked and its verdict shown. The markers
    are `<!-- erratum ID -->` (printed, corrected, how it is decided) and `<!-- consequence ID -->`.
    """

    def shown(found):
        erratum = _all_errata().get(found[2])
        if erratum is None:
            return found[0]
        if found[1] == "erratum":
            quoted = f"**As printed** ({erratum['place']}): {erratum['printed'].strip()}"
            quoted += f"\n\n**Corrected.** {erratum['corrected'].strip()}"
            quoted = "\n".join(f"> {line}".rstrip() for line in quoted.splitlines())
            return f"{quoted}\n\n**How it is decided.** {erratum['how'].strip()}"
        return (
            f"**Consequence.** {erratum['consequence'].strip()}\n\n"
            f"**Not a slip of the transcription.** {erratum['transcription'].strip()}\n\n"
            f"**Claim that measures it:** {_claim_link(erratum['shown_by'], records)}."
        )

    return _MARKER.sub(shown, text)


def _claim_link(name, records):
    """The claim's name, linked to the cell that measures it or else to its row in the ledger, and its verdict."""
    record = records.get(name)
    target = f"../{record['chapter']}.html#claim-{name}" if record else f"../back/ledger.html#ledger-{name}"
    return f'<a href="{target}">{name}</a> {_badge(outcome(name, judge(record) if record else None))}'


def errata_page(records, headings):
    """The overview of the errata as Markdown, a table for each paper, for the marker in chapters/back/errata.md.

    records: {id of a claim: its record}. headings: {id of an erratum: heading of its section}, from `errata_sections`.
    """
    known = _all_errata()
    if not known:
        return "No erratum has been found so far."
    parts = []
    for paper, title in PAPERS.items():
        rows = []
        for name, erratum in known.items():
            if erratum["paper"] == paper:
                link = f'<a href="../errata/{paper}.html#erratum-{name}">{headings.get(name) or name}</a>'
                cells = (link, erratum["place"], _claim_link(erratum["shown_by"], records))
                rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
        if rows:
            head = "| finding | place in the paper | measured by |\n|---|---|---|\n"
            table = head + "\n".join(rows)
            parts.append(f'## {title}\n\n<div class="overview">\n\n{table}\n\n</div>')
    return "\n\n".join(parts)
