"""The paper's tables, filled from the rows of a benchmark report.

Columns keep the paper's names. AccLen is A, Spd. the measured S (times of decoding), VerRds. the
counted rounds of a response, Lat. decoding time over that of plain decoding. Acc. is the data set's
metric of the verifier's answers, which no drafter can change; Acc. (drafter) that of the drafter's
own answers. What a run has not measured is "-".
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tiger_jax.evaluation.tables import markdown, number

Row = Mapping[str, Any]
BAR = 40
"""Letters of the longest bar of a histogram."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a table looks."""

    title: str
    keys: tuple[str, ...]
    """Columns that name a row; "label" makes data sets rows, else each has its own columns."""
    columns: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Why its numbers are not the paper's."""
    alone: bool = False
    """Rows are drafters alone."""
    histogram: bool = False


@dataclasses.dataclass(frozen=True)
class Place:
    """All rows of a report about one method on one data set at one T and batch size."""

    speed: Row | None = None
    score: Row | None = None
    plain: Row | None = None
    plain_score: Row | None = None
    alone: Row | None = None
    alone_score: Row | None = None
    base: Row | None = None
    """The plain row at the smallest batch size."""
    full: Row | None = None
    """The drafter alone that sees all visual tokens."""


PUBLISHED = (
    "The paper's pairs, data and hardware are others: its figures, and its contradictions (I1 to "
    "I22), stand in docs/results.md; only the order of rows can be set beside it.",
    "Only questions of the written list of ids were asked: no value is that of a whole split.",
)
EXACT = (
    "Acc. is one number for all drafters: verification is exact, so the paper's Acc., which moves "
    "with the drafter, cannot be that of the verified output (I6).",
)
COUNTED = (
    "VerRds. counts the rounds of a response; the paper prints 1/AccLen in its place (I3). Lat. is "
    "1/Spd. by definition.",
)
SHORT = "AccLen and Spd. are of long answers, Acc. of short ones: other prompts, never one run."
_PAIRS = (
    "A row is a pair of a drafter and a verifier; the paper names one model a block (I1), and its "
    "baselines are heads on that model.",
)
_K = ("variant", "k_train", "k_infer")
TABLES = {
    "benchmark": Layout("All data sets", ("variant",), ("AccLen", "Spd.", "Acc."), (SHORT,)),
    "main_results": Layout(
        "Main results", ("variant",), ("AccLen", "Spd."), (*_PAIRS, *PUBLISHED),
    ),
    "visual_interface": Layout(
        "Visual interfaces, drafter alone", ("variant", "selector", "k"),
        ("Caption score", "Norm. Lat."),
        ("Answers of the drafter alone, nothing is verified. Caption Acc. of the paper is never "
         "defined: the score is the data set's own. Lat.: time a token (prefill left out) over "
         "that of full visual tokens. A routed drafter learned to go on from the verifier's "
         "words, not to begin an answer.", *PUBLISHED),
        alone=True,
    ),
    "ablation": Layout(
        "Ablation", ("variant",), ("AccLen", "Spd.", "VerRds.", "Lat."),
        ("The paper's caption says COCO, its TIGER rows are those of MMBench (I2).", *COUNTED,
         *PUBLISHED),
    ),
    "routing_sparsity": Layout(
        "Routing sparsity", ("variant", "k_train", "k_infer"),
        ("AccLen", "Spd.", "Acc.", "Acc. (drafter)"),
        (SHORT, *EXACT, "Eight more tokens cost less than 1 % of a step: the paper's costs at "
         "k = 16 (I8) are not those of decoding.", *PUBLISHED),
    ),
    "capability": Layout(
        "Capabilities", ("label", "variant"),
        ("Metric", "Acc. (verifier)", "Acc. (pair)", "Acc. (drafter)", "AccLen", "Spd."),
        (SHORT, *EXACT, *PUBLISHED),
    ),
    "prefix_distribution": Layout(
        "Accepted prefixes", ("variant",), ("AccLen", "P(A>=2)", "P(A>=4)", "P(A>=8)"),
        ("No share above a drafter's depth can be other than 0; the paper has some (I5).",
         *PUBLISHED),
        histogram=True,
    ),
    "temperature": Layout(
        "Temperature", ("variant", "T"), ("AccLen", "Spd.", "VerRds.", "Lat."),
        ("Above T = 0 both ways of decoding draw other texts of the same law: Spd. compares times "
         "a token.", *COUNTED, *PUBLISHED),
    ),
    "context_heavy": Layout(
        "Long and many visual contexts", ("variant",), ("AccLen", "Spd.", "Acc."),
        ("Frames: fps and the most of a video stand in the settings; the paper's budget is not "
         "given. LLaVA holds 4,096 positions, so its frames are pooled (I15).", SHORT,
         *PUBLISHED),
    ),
    "batch_size": Layout(
        "Batch sizes", ("label", "variant", "batch"),
        ("Target Lat.", "TIGER Lat.", "Spd.", "Target Mem. (GB)", "TIGER Mem. (GB)", "Acc."),
        ("Lat.: seconds a sample, prefill included, over those of plain decoding at the smallest "
         "batch; Spd. compares decoding at the same batch. Mem.: the most while a batch of "
         "the row was decoded: on CPUs resident memory, with what the process kept from before; on "
         "accelerators device memory of the run so far, never below the row before.", SHORT,
         *PUBLISHED),
    ),
    "k_sensitivity": Layout(
        "k in training and inference", _K, ("AccLen", "Spd.", "Acc.", "Acc. (drafter)"),
        (SHORT, *EXACT, *PUBLISHED),
    ),
    "adapter_pruning": Layout(
        "Selectors in the same loop", ("variant",),
        ("AccLen", "Spd.", "Lat.", "Acc.", "Acc. (drafter)"),
        (SHORT, *EXACT, "The paper's Lat. x Spd. is not 1 (I4).", *PUBLISHED),
    ),
    "objectives": Layout(
        "Objectives", ("variant",), ("AccLen", "Spd.", "Lat.", "Acc.", "Acc. (drafter)"),
        (SHORT, *EXACT, *PUBLISHED),
    ),
    "routing_ablation": Layout(
        "Routing, part by part", ("variant", "selector"),
        ("AccLen", "Spd.", "Lat.", "Acc.", "Acc. (drafter)"),
        (SHORT, *EXACT, *PUBLISHED),
    ),
}  # fmt: skip


def text(report: Mapping[str, Any]) -> str:
    """A report's rows in the form of its table."""
    layout = TABLES.get(report["table"], TABLES["benchmark"])
    places = _places(report["rows"], layout)
    if not places:
        return "Nothing drafted here."
    labels = list(dict.fromkeys(row["label"] for row in report["rows"]))
    parts = [f"## {layout.title}", _table(layout, places, labels)]
    if layout.histogram:
        parts += histograms(report["rows"])
    if layout.notes:
        parts.append("\n".join(f"- {note}" for note in layout.notes))
    return "\n\n".join(parts)


def histograms(rows: Sequence[Row]) -> list[str]:
    """How often a round accepted 0, 1, 2 ... drafts, one bar a line."""
    parts = []
    for row in rows:
        if not row.get("rounds"):
            continue
        name = f"{row['variant']}, {row['label']}, T {row['T']:g}, g {row['g']}"
        most, lines = max(row["histogram"]), []
        for accepted, count in enumerate(row["histogram"]):
            bar = "#" * round(BAR * count / most)
            share = count / row["rounds"]
            lines.append(f"A = {accepted:<2d} {bar:<{BAR}s} {count:6d}  {share:6.1%}")
        parts.append(f"{name}:\n\n```\n" + "\n".join(lines) + "\n```")
    return parts


def _places(rows: Sequence[Row], layout: Layout) -> dict[tuple, Place]:
    """(variant, T, batch, g, label) -> the rows about it."""
    places = {}
    smallest = min(row["batch"] for row in rows)
    for row in rows:
        drafts = row["drafter"] is not None and row["alone"] == layout.alone
        if not drafts:
            continue
        near = [other for other in rows if _beside(row, other)]
        own = [other for other in near if _same_drafter(row, other) and not other["alone"]]
        alone = [other for other in near if _same_drafter(row, other) and other["alone"]]
        plain = [other for other in near if other["drafter"] is None]
        first = [o for o in rows if o["drafter"] is None and o["label"] == row["label"]
                 and o["T"] == row["T"] and o["batch"] == smallest]  # fmt: skip
        full = [o for o in near if o["alone"] and o["selector"] == "full"]
        key = (row["variant"], row["T"], row["batch"], row["label"])
        speed = _of(own, "speed", row)
        places[(*key, row["g"] if row["mode"] == "speed" else (speed or row)["g"])] = Place(
            speed, _of(own, "score"), _of(plain, "speed"), _of(plain, "score"),
            _of(alone, "speed"), _of(alone, "score"), _of(first, "speed"), _of(full, "speed"),
        )  # fmt: skip
    return places


def _beside(row: Row, other: Row) -> bool:
    return all(row[name] == other[name] for name in ("label", "T", "batch"))


def _same_drafter(row: Row, other: Row) -> bool:
    return all(row[name] == other[name] for name in ("drafter", "selector", "k"))


def _of(rows: Sequence[Row], mode: str, like: Row | None = None) -> Row | None:
    """The row of a mode; of several draft lengths, that of `like`."""
    found = [row for row in rows if row["mode"] == mode]
    if like is not None and like["mode"] == mode:
        found = [row for row in found if row["g"] == like["g"]]
    return found[0] if found else None


def _table(layout: Layout, places: Mapping[tuple, Place], labels: Sequence[str]) -> str:
    """Rows by the layout's keys; where data sets are no rows, columns of each of them."""
    by_label = "label" in layout.keys
    lengths = {key[4] for key in places}
    keys = [*layout.keys, *(["g"] if len(lengths) > 1 and "g" not in layout.keys else [])]
    lines: dict[tuple, dict[str, Place]] = {}
    for (variant, temperature, batch, label, g), place in places.items():
        row = place.speed or place.score or place.alone or place.alone_score
        facts = {
            "variant": variant, "T": f"{temperature:g}", "batch": str(batch), "label": label,
            "g": str(g), "k": number(row["k"], "d"), "k_infer": number(row["k"], "d"),
            "k_train": number(row["trained_k"], "d"), "selector": row["selector"] or "-",
        }  # fmt: skip
        name = tuple(facts[key] for key in keys)
        lines.setdefault(name, {})[label] = place
    seen = {label for found in lines.values() for label in found}
    shown = [None] if by_label else [label for label in labels if label in seen]
    header = [_HEADERS.get(key, key) for key in keys]
    header += [c if label is None else f"{label} {c}" for label in shown for c in layout.columns]
    if by_label:
        return markdown(header, [
            [*name, *(COLUMNS[c](place) for c in layout.columns)]
            for name, found in lines.items() for place in found.values()
        ])  # fmt: skip
    return markdown(header, [
        [*name, *(COLUMNS[c](found.get(label, Place())) for label in shown for c in layout.columns)]
        for name, found in lines.items()
    ])  # fmt: skip


def _field(part: str, name: str, form: str, scale: float = 1.0) -> Callable[[Place], str]:
    """A cell that shows one number of one of a place's rows."""

    def show(place: Place) -> str:
        row = getattr(place, part)
        value = row.get(name) if row else None
        return number(None if value is None else scale * value, form)

    return show


def _speedup(place: Place) -> str:
    value = place.speed and place.speed.get("measured_speedup")
    return "-" if value is None else f"{value:.2f}x"


def _latency(place: Place) -> str:
    value = place.speed and place.speed.get("measured_speedup")
    return number(1 / value if value else None, ".3f")


def _metric(place: Place) -> str:
    rows = (place.plain_score, place.score, place.alone_score)
    return next((row["metric"] for row in rows if row and row["metric"]), None) or "-"


def _verified(place: Place) -> str:
    """Of the pair; of plain decoding where the pair was not scored: the same tokens."""
    values = (row["value"] for row in (place.score, place.plain_score) if row)
    return number(next(values, None), ".3f")


def _over(row: Row | None, base: Row | None, name: str) -> str:
    if not (row and base and row.get(name) and base.get(name)):
        return "-"
    return f"{row[name] / base[name]:.3f}"


_HEADERS = {"variant": "Method", "label": "Data set", "batch": "Batch size"}
COLUMNS: dict[str, Callable[[Place], str]] = {
    "AccLen": _field("speed", "A", ".2f"),
    "Spd.": _speedup,
    "VerRds.": _field("speed", "rounds_a_response", ".1f"),
    "Lat.": _latency,
    "Metric": _metric,
    "Acc.": _verified,
    "Acc. (pair)": _field("score", "value", ".3f"),
    "Acc. (verifier)": _field("plain_score", "value", ".3f"),
    "Acc. (drafter)": _field("alone_score", "value", ".3f"),
    "Caption score": _field("alone_score", "value", ".3f"),
    "Norm. Lat.": lambda place: _over(place.alone, place.full, "seconds_a_token"),
    **{f"P(A>={n})": _field("speed", f"p_ge_{n}", ".1f", 100.0) for n in (2, 4, 8)},
    "Target Lat.": lambda place: _over(place.plain, place.base, "seconds_a_sample"),
    "TIGER Lat.": lambda place: _over(place.speed, place.base, "seconds_a_sample"),
    "Target Mem. (GB)": _field("plain", "peak_bytes", ".2f", 1e-9),
    "TIGER Mem. (GB)": _field("speed", "peak_bytes", ".2f", 1e-9),
}
