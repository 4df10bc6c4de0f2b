"""A benchmark as numbers (JSON) and as Markdown: one row a cell, score and speed apart."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiger_jax.decoding import statistics
from tiger_jax.evaluation import benchmark_notes, benchmark_tables, scoring
from tiger_jax.evaluation.benchmark_cells import Cell
from tiger_jax.evaluation.comparison import ratio
from tiger_jax.evaluation.journal import RUN, CellLog, Journal
from tiger_jax.evaluation.run_profile import line
from tiger_jax.evaluation.tables import markdown, number, with_error, write_report, yes_no

LEVELS = (2, 4, 8)
_SAME = ("dataset", "label", "split", "mode", "T", "batch", "ids")
"""What two rows share whose answers are compared."""


def build(
    config: Any, cells: Sequence[Cell], journal: Journal, left_out: Sequence[str],
    interrupted: bool,
) -> dict:  # fmt: skip
    """Everything that was counted, timed and scored: it follows from the journal alone. `run` is
    no part of what a run that was killed repeats equally."""
    plain = {
        _key(cell): journal.cell(cell.fingerprint).rows
        for cell in cells
        if cell.method.variant is None
    }
    rows = []
    for cell in cells:
        log = journal.cell(cell.fingerprint)
        row = _facts(cell, log)
        if cell.speed:
            costs = journal.cell(cell.costs_name(config.costs)).costs
            row |= _speed(cell, log, costs)
        else:
            row |= _score(cell, log, plain.get(_key(cell)))
        rows.append(row)
    return {
        "table": config.table, "settings": _settings(config), "left_out": list(left_out),
        "rows": rows, "interrupted": interrupted, "run": journal.cell(RUN).run,
    }  # fmt: skip


def text(report: Mapping[str, Any]) -> str:
    """The table in the paper's form, the rows behind it, raw answers, and what to make of them."""
    scored = [row for row in report["rows"] if row["mode"] == "score"]
    timed = [row for row in report["rows"] if row["mode"] == "speed"]
    parts = [f"# {report['table']}", benchmark_tables.text(report)]
    if timed:
        parts += ["## Speed (long answers; no task metric)", _speed_table(timed)]
        parts.append(benchmark_notes.of_speed(timed))
    if scored:
        parts += ["## Score (short answers; official metrics)", _score_table(scored)]
        parts.append(benchmark_notes.of_score(scored))
        parts += _reasons(scored) + _raw(scored)
    parts += [benchmark_notes.of_places(report), _left_out(report), _run_facts(report)]
    whole = "\n\n".join(part for part in parts if part)
    return whole.encode("utf-8", "backslashreplace").decode()  # answers may hold half characters


def write(
    folder: Path, report: Mapping[str, Any], lines: str, cells: Sequence[Cell], journal: Journal
) -> None:
    """report.json, report.md, and files for judges that are not here."""
    write_report(str(folder / "report.json"), report)
    (folder / "report.md").write_text(lines + "\n", encoding="utf-8")
    for cell in cells:
        answers = None
        if not cell.speed:
            texts = _texts(journal.cell(cell.fingerprint), cell)
            answers = scoring.for_judges(cell.sample, texts)
        if answers is not None:
            write_report(str(folder / _judged_file(cell)), answers)


def _judged_file(cell: Cell) -> str:
    name = "".join(c if c.isalnum() else "_" for c in f"{cell.sample.label} {cell.method.name}")
    return f"answers-{name}-T{cell.temperature:g}-B{cell.batch_size}.json"


def _settings(config: Any) -> dict:
    settings = config.to_dict()
    return {name: settings[name] for name in settings if name not in ("out", "report")}


def _key(cell: Cell) -> tuple:
    return tuple(cell.about[name] for name in _SAME)


def _texts(log: CellLog, cell: Cell) -> dict[str, str]:
    return {uid: log.rows[uid]["text"] for uid in cell.sample.uids if uid in log.rows}


def _facts(cell: Cell, log: CellLog) -> dict:
    """Which cell a row is about, and how much of it was answered."""
    sample, uids = cell.sample, cell.sample.uids
    failed = {uid: log.failed[uid] for uid in uids if uid in log.failed}
    first = sample.questions[0].facts
    return cell.about | {
        "cell": cell.fingerprint, "place": sample.place, "prompt_style": first.get("style"),
        "ocr": first.get("ocr", False), "subtitles": first.get("subtitles", False),
        "questions": len(uids), "usable": sample.total,
        "answered": sum(uid in log.rows for uid in uids), "failed": len(failed),
        "answers_a_batch": len(log.rows) / log.batches if log.batches else None,
        "failures": list(failed.items())[:5], "faults": dict(sample.faults),
        "fault_lines": list(sample.quoted), "peak_bytes": log.peak_bytes or None,
    }  # fmt: skip


def _score(cell: Cell, log: CellLog, plain: Mapping[str, dict] | None) -> dict:
    """The metrics, whether the tokens are those of plain decoding, and the first answers."""
    texts = _texts(log, cell)
    found = scoring.score(cell.sample, texts)
    drafts = cell.method.variant is not None and not cell.method.alone
    return {
        "metric": found.headline, "value": found.value, "reason": found.reason,
        "metrics": dict(found.metrics),
        "identical_to_plain": _identical(log.rows, plain)
        if drafts and cell.temperature == 0 else None,
        "raw": scoring.raw(cell.sample, texts),
    }  # fmt: skip


def _identical(rows: Mapping[str, dict], plain: Mapping[str, dict] | None) -> bool | None:
    """None where plain decoding did not answer the same questions."""
    both = [uid for uid in rows if plain and uid in plain]
    if not both:
        return None
    return all(rows[uid]["tokens"] == plain[uid]["tokens"] for uid in both)


def _speed(cell: Cell, log: CellLog, costs: Mapping[str, Any] | None) -> dict:
    """Acceptance, and times a token; prefill and the first token that comes of it left out."""
    rows = [log.rows[uid] for uid in cell.sample.uids if uid in log.rows]
    tokens = sum(len(row["tokens"]) for row in rows)
    later = tokens - len(rows)
    seconds = log.seconds
    own = seconds.get("decode", 0.0) / later if later else None
    found = {
        "tokens": tokens, "prompt_tokens": sum(row["prompt_tokens"] for row in rows),
        "prefill_seconds": seconds.get("prefill"), "decode_seconds": seconds.get("decode"),
        "seconds_a_token": own,
        "seconds_a_sample": sum(seconds.get(name, 0.0) for name in ("prefill", "decode"))
        / len(rows) if rows else None,
    }  # fmt: skip
    if cell.method.variant is None or cell.method.alone:
        return found
    return found | _rounds(rows, tokens, log.depth or 0) | _speedup(cell, rows, seconds, own, costs)


def _rounds(rows: Sequence[dict], tokens: int, depth: int) -> dict:
    """A and how it is distributed; errors are over answers."""
    pool = statistics.pool([row["accepted"] for row in rows], tokens)
    accepted = np.array([sum(row["accepted"]) for row in rows])
    rounds = np.array([len(row["accepted"]) for row in rows])
    estimate = ratio(accepted, rounds, [row["uid"] for row in rows])
    counts = np.bincount(np.array(pool.accepted_lengths, int), minlength=depth + 1)
    return {
        "depth": depth, "A": pool.mean, "A_error": estimate.error, "tau": pool.tau,
        **{f"p_ge_{n}": pool.share_at_least(n) if n <= depth else None for n in LEVELS},
        "histogram": counts.tolist(), "rounds": pool.rounds,
        "rounds_a_response": pool.rounds / len(rows) if rows else None,
    }  # fmt: skip


def _speedup(
    cell: Cell, rows: Sequence[dict], seconds: Mapping[str, float], own: float | None,
    costs: Mapping[str, Any] | None,
) -> dict:  # fmt: skip
    """S = time a token of plain decoding / of the pair: equal to the ratio of times at T = 0, where
    both emit the same tokens."""
    later = sum(row["plain_tokens"] - 1 for row in rows)
    plain = seconds.get("plain_decode", 0.0) / later if later else None
    same = [row["identical"] for row in rows if "identical" in row]
    found = {
        "plain_seconds_a_token": plain, "plain_decode_seconds": seconds.get("plain_decode"),
        "plain_prefill_seconds": seconds.get("plain_prefill"),
        "measured_speedup": plain / own if plain and own else None,
        "measured_speedup_with_prefill": _with_prefill(seconds) if cell.temperature == 0 else None,
        "predicted_speedup": None, "ceiling": None, "c": None, "c_route": None, "v": None,
        "costs_on": None, "identical_to_plain": all(same) if same else None,
    }  # fmt: skip
    pool = statistics.pool([row["accepted"] for row in rows], 0)
    if costs and pool.tau is not None:
        found |= {name: costs[name] for name in ("c", "c_route", "v")}
        found["costs_on"] = costs["on"]
        found["ceiling"] = 1 / costs["c"] if costs["c"] > 0 else None
        found["predicted_speedup"] = statistics.predicted_speedup(
            pool.tau, costs["depth"], costs["c"], costs["v"], costs["c_route"]
        )
    return found


def _with_prefill(seconds: Mapping[str, float]) -> float | None:
    own = seconds.get("prefill", 0.0) + seconds.get("decode", 0.0)
    plain = seconds.get("plain_prefill", 0.0) + seconds.get("plain_decode", 0.0)
    return plain / own if own else None


def _identity(row: Mapping[str, Any]) -> list[str]:
    k = number(row["k"], "d")
    return [row["variant"], row["selector"] or "-", k, f"{row['T']:g}", f"{row['batch']}"]


def _speed_table(rows: Sequence[Mapping[str, Any]]) -> str:
    header = (
        "data set", "variant", "selector", "k", "T", "batch", "g", "answers", "A", "tau",
        *(f"P(A>={n})" for n in LEVELS), "rounds", "tokens", "c", "c_route", "v", "T_AR ms",
        "T_SD ms", "measured S", "with prefill", "predicted S", "identical to plain",
    )  # fmt: skip
    cells = []
    for row in rows:
        drafted = "A" in row
        own, plain = row["seconds_a_token"], row.get("plain_seconds_a_token")
        if not drafted and not row["alone"]:
            own, plain = None, own
        cells.append([
            row["label"], *_identity(row), f"{row['g']}", _count(row),
            with_error(row.get("A"), row.get("A_error"), ".2f"), number(row.get("tau"), ".2f"),
            *(number(row.get(f"p_ge_{n}"), ".3f") for n in LEVELS),
            number(row.get("rounds"), "d"), f"{row['tokens']}",
            *(number(row.get(name), ".3f") for name in ("c", "c_route")),
            number(row.get("v"), ".2f"), number(plain and 1000 * plain, ".2f"),
            number(own and 1000 * own, ".2f"),
            *(number(row.get(name), ".2f") for name in (
                "measured_speedup", "measured_speedup_with_prefill", "predicted_speedup")),
            yes_no(row.get("identical_to_plain")),
        ])  # fmt: skip
    return markdown(header, cells)


def _score_table(rows: Sequence[Mapping[str, Any]]) -> str:
    header = (
        "data set", "split", "variant", "answers of", "selector", "k", "T", "batch", "answers",
        "metric", "value", "other metrics", "identical to plain",
    )  # fmt: skip
    return markdown(header, [
        [row["label"], row["split"], row["variant"], "drafter" if row["alone"] else "verifier",
         *_identity(row)[1:], _count(row), row["metric"] or "-", number(row["value"], ".4f"),
         _others(row), yes_no(row["identical_to_plain"])]
        for row in rows
    ])  # fmt: skip


def _count(row: Mapping[str, Any]) -> str:
    """Answers of questions; what could not be asked shows."""
    return f"{row['answered']}" if row["answered"] == row["questions"] else (
        f"{row['answered']} of {row['questions']}"
    )  # fmt: skip


def _others(row: Mapping[str, Any]) -> str:
    """The few that a line has room for; the JSON has all."""
    shown = [
        f"{name} {value:.3f}"
        for name, value in row["metrics"].items()
        if isinstance(value, float) and name != row["metric"] and "/" not in name
    ]
    return ", ".join(shown[:4]) or "-"


def _reasons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = dict.fromkeys(f"- {row['label']}: {row['reason']}" for row in rows if row["reason"])
    lines |= dict.fromkeys(
        f"- {row['label']}: {uid}: {why}" for row in rows for uid, why in row["failures"]
    )
    return ["Without a value, or without an answer:\n" + "\n".join(lines)] if lines else []


def _raw(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Raw answers of the verifier and of each drafter alone: a parse that fails shows here."""
    parts = ["## Raw answers"]
    seen = set()
    for row in rows:
        key = (row["label"], row["variant"] if row["alone"] else "verifier", row["T"])
        if key in seen or not row["raw"]:
            continue
        seen.add(key)
        header = ("uid", "answer", "parse", "gold")
        cells = [
            [one["uid"], _short(one["answer"]), _short(one["parse"]), _short(one["gold"])]
            for one in row["raw"]
        ]
        parts.append(f"{key[0]}, {key[1]}:\n\n{markdown(header, cells)}")
    return parts if seen else []


def _short(value: Any) -> str:
    if value is None:
        return "(none)"
    shown = " ".join(str(value).split()).replace("|", "\\|")
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _left_out(report: Mapping[str, Any]) -> str:
    lines = [f"- {line}" for line in report["left_out"]]
    faults = {
        f"- {row['label']} ({row['mode']}): {_counted(row['faults'])}"
        for row in report["rows"]
        if row["faults"]
    }
    parts = []
    if lines:
        parts.append("Left out:\n" + "\n".join(lines))
    if faults:
        parts.append("Records that cannot be used:\n" + "\n".join(sorted(faults)))
    if report["interrupted"]:
        parts.append("Interrupted: the same command goes on from here.")
    return "\n\n".join(parts)


def _counted(faults: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in faults.items())


def _run_facts(report: Mapping[str, Any]) -> str:
    row, run = report["rows"][0], report["run"]
    programs = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return (
        f"Verifier {row['verifier']}, {row['dtype']}, seed {row['seed']}, {row['hardware']}, "
        f"{programs}." + (f"\n\nThe last run: {line(run)}." if run else "")
    )
