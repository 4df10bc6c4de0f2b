"""What a benchmark's numbers are, and what they must not be compared with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiger_jax import embedded
from tiger_jax.evaluation.benchmark_config import EXAMPLES, MADE_UP, SCENES

Row = Mapping[str, Any]
_OF_SETS = {
    "textvqa": "TextVQA: {ocr} the line of OCR tokens, which is worth about 12 points to some "
    "models.",
    "mmbench": "MMBench: circular_accuracy counts a question only if it is right in every "
    "rotation; vanilla_accuracy is 10 to 20 points above it. No judge reads unclear answers.",
    "mm_vet": "MM-Vet: mmvet_string_match is not the MM-Vet score, which needs the official judge: "
    "answers-*.json is for it.",
    "coco_captions": "COCO: CIDEr depends on the set of pictures; compare within one list of ids "
    "only.",
    "nlvr2": "NLVR2: consistency is that of whole groups of sentences.",
    "muirbench": "MuirBench: an answer without a letter is wrong; the official script guesses.",
    "video_mme": "Video-MME: {subtitles} subtitles; frames a second and most frames stand in the "
    "settings.",
    "docvqa": "DocVQA: a near miss of a number scores too (ANLS).",
    "chartqa": "ChartQA: relaxed accuracy takes a year for a number: 2008 for 2010 is right.",
    "tallyqa": "TallyQA: for RMSE an answer without a number is 0.",
    SCENES: "Scenes: exact_match is the share of answers that state exactly the right facts; "
    "pictures of the project's own, never trained on.",
    EXAMPLES: "Examples: exact_match leaves case, spaces and a full stop at the end out.",
}


def of_speed(rows: Sequence[Row]) -> str:
    """How the columns of times came about."""
    measured = dict.fromkeys(row["costs_on"] for row in rows if row.get("costs_on"))
    lines = [
        "T_AR, T_SD: milliseconds of decoding a token, of plain decoding and of the row, over all "
        "rows of a batch; prefill, and the token that comes of it, left out. S = T_AR / T_SD, both "
        "measured on the same batch, one after the other. A: accepted drafts a round, ± one "
        "standard error over answers, the last round of an answer cut where the answer ends; tau = "
        "A + 1, so that tau x rounds is the number of tokens behind the first ones.",
    ]
    part = dict.fromkeys(
        f"{row['label']} {row['variant']} {row['answers_a_batch']:.1f} of {row['batch']}"
        for row in rows
        if (row["answers_a_batch"] or row["batch"]) < 0.9 * row["batch"]
    )
    if part:
        lines.append(
            "Batches that were not full, whose rows cost more than at their batch size: "
            f"{', '.join(part)}."
        )
    if measured:
        lines.append(
            f"c, c_route, v were measured on the first batch of: {', '.join(measured)}; predicted "
            "S = tau / (g c + c_route + v)."
        )
    if any(row["T"] > 0 for row in rows):
        lines.append("Above T = 0 plain decoding draws other texts of the same law.")
    return _list(lines)


def of_score(rows: Sequence[Row]) -> str:
    """What each metric is not."""
    lines = []
    for name, note in _OF_SETS.items():
        row = next((row for row in rows if row["dataset"] == name), None)
        if row is not None:
            used = {each: "with" if row[each] else "without" for each in ("ocr", "subtitles")}
            lines.append(note.format(**used))
    parts = [row for row in rows if row["questions"] < row["usable"]]
    if parts:
        sizes = dict.fromkeys(
            f"{row['label']} {row['questions']} of {row['usable']}" for row in parts
        )
        lines.append(
            f"Parts of splits, chosen by seed {parts[0]['seed']} (ids/*.json): {', '.join(sizes)}. "
            "Not comparable with values of whole splits."
        )
    return _list(lines)


def of_places(report: Mapping[str, Any]) -> str:
    """Which files were read, and which numbers mean nothing."""
    rows, settings = report["rows"], report["settings"]
    places = dict.fromkeys(f"{row['label']} {row['place']}" for row in rows if row["place"])
    lines = [f"Read from: {', '.join(places)}."] if places else []
    made_up = dict.fromkeys(
        row["label"] for row in rows
        if row["place"] and Path(row["place"]).name.startswith(MADE_UP)
    )  # fmt: skip
    if made_up:
        lines.append(
            f"Made up, or with pictures that stand in for the real ones: {', '.join(made_up)}. "
            "Their speeds say nothing about the data set of that name."
        )
    if settings["pair"] in embedded.PAIRS and not settings["verifier"]:
        lines.append(
            f"{settings['pair']} learned to speak about drawn scenes only: what it says about "
            "photos, charts and pages means nothing, and its values there are those of noise."
        )
    return _list(lines)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
