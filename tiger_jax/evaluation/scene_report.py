"""What was counted over scenes, as numbers (JSON) and as a Markdown table."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tiger_jax.decoding import statistics
from tiger_jax.decoding.costs import Costs
from tiger_jax.evaluation.comparison import Estimate, ratio
from tiger_jax.evaluation.standard_error import clustered_mean
from tiger_jax.evaluation.tables import markdown, number, with_error, yes_no

if TYPE_CHECKING:
    from tiger_jax.evaluation.scene_run import Cell, Judged

HEADER = (
    "scenes", "T", "question", "prompts", "verifier exact %", "drafter exact %", "A",
    "exact A", "P(A>=2)", "P(A>=4)", "P(A>=8)", "rounds", "tokens", "c", "c_route", "v",
    "predicted S", "measured S", "identical to plain",
)  # fmt: skip


def build(
    cells: Sequence["Cell"], costs: Mapping[float, Costs], settings: Mapping[str, Any], device: str
) -> dict:
    """The report: one row a cell, and one over all kinds of each temperature and difficulty."""
    groups: dict[tuple[float, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.key.temperature, cell.key.difficulty), []).append(cell)
    rows = []
    for (temperature, difficulty), members in groups.items():
        cost = costs.get(temperature)
        for name, part in [*((c.key.kind, [c]) for c in members), ("all", members)]:
            row = {"difficulty": difficulty, "temperature": temperature, "kind": name}
            rows.append(row | summarise(part, cost, settings["draft_length"]))
    return {
        "settings": _plain(settings),
        "device": device,
        "rows": rows,
        "costs": [
            {
                "temperature": t,
                "c": c.c,
                "c_route": c.c_route,
                "v": c.v,
                "draft_length": c.draft_length,
            }
            for t, c in costs.items()
        ],
    }


def summarise(cells: Sequence["Cell"], cost: Costs | None, draft_length: int) -> dict:
    """The numbers of one row. Shares are 0..1, of more than draft_length drafts None; times and
    speeds leave prefill out."""
    judged = [answer for cell in cells for answer in cell.judged]
    exact = clustered_mean([j.correct for j in judged], [j.picture for j in judged])
    pool = statistics.pool([j.accepted_lengths for j in judged], sum(j.tokens for j in judged))
    accepted = clustered_mean(
        pool.accepted_lengths, [j.picture for j in judged for _ in j.accepted_lengths]
    )
    alone = [j for j in judged if j.drafter_correct is not None]
    drafter = clustered_mean([j.drafter_correct for j in alone], [j.picture for j in alone])
    expected = _exact(cells)
    seconds = sum(cell.seconds for cell in cells)
    plain_seconds = sum(cell.plain_seconds for cell in cells)
    predicted = None
    if cost is not None and pool.tau is not None:
        predicted = statistics.predicted_speedup(
            pool.tau, cost.draft_length, cost.c, cost.v, cost.c_route
        )
    return {
        "prompts": len(judged),
        "verifier_exact": exact.value, "verifier_exact_error": exact.error,
        "drafter_exact": drafter.value, "drafter_exact_error": drafter.error,
        "A": accepted.value, "A_error": accepted.error,
        "exact_A": expected.value, "exact_A_error": expected.error,
        **{
            f"p_ge_{n}": pool.share_at_least(n) if n <= draft_length else None for n in (2, 4, 8)
        },
        "rounds": pool.rounds, "tokens": pool.tokens,
        "decode_seconds": seconds, "plain_decode_seconds": plain_seconds,
        "c": cost and cost.c, "c_route": cost and cost.c_route, "v": cost and cost.v,
        "predicted_speedup": predicted,
        "measured_speedup": plain_seconds / seconds if pool.rounds and seconds else None,
        "identical_to_plain": _all_identical(judged),
    }  # fmt: skip


def text(report: Mapping[str, Any]) -> str:
    """The table, and under it what its numbers mean."""
    settings = report["settings"]
    lines = [
        markdown(HEADER, [_cells(row) for row in report["rows"]]),
        "",
        f"{settings['scenes']} held-out pictures or clips a line and kind, "
        f"batch {settings['batch_size']}, draft length {settings['draft_length']}, "
        f"{report['device']}. ± is one standard error, clustered by picture.",
        "exact %: the answer states exactly the right facts; of a drafter that routes, which was "
        "never trained to answer alone, it is not asked. A: drafted tokens accepted a round; "
        "exact A: expected along the verifier's own answers, without the noise of drawing. "
        "S: plain decoding time / speculative decoding time, without prefill.",
    ]
    for cost in report["costs"]:
        lines.append(
            f"T={cost['temperature']:g}: c {cost['c']:.3f}, c_route {cost['c_route']:.3f}, "
            f"v {cost['v']:.2f}, ceiling 1/c {1 / cost['c']:.1f} (at this batch)"
        )
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    drafted = row["rounds"] > 0
    return [
        row["difficulty"], f"{row['temperature']:g}", row["kind"], str(row["prompts"]),
        _percent(row, "verifier_exact"), _percent(row, "drafter_exact"),
        with_error(row["A"], row["A_error"], ".2f"),
        with_error(row["exact_A"], row["exact_A_error"], ".2f"),
        *(number(row[f"p_ge_{n}"], ".2f") for n in (2, 4, 8)),
        str(row["rounds"]) if drafted else "-", str(row["tokens"]),
        number(row["c"], ".3f"), number(row["c_route"], ".3f"), number(row["v"], ".2f"),
        number(row["predicted_speedup"], ".2f"), number(row["measured_speedup"], ".2f"),
        yes_no(row["identical_to_plain"]),
    ]  # fmt: skip


def _percent(row: Mapping[str, Any], name: str) -> str:
    value, error = row[name], row[f"{name}_error"]
    return with_error(
        None if value is None else 100 * value, None if error is None else 100 * error, ".1f"
    )


def _exact(cells: Sequence["Cell"]) -> Estimate:
    """Exact A over all answers; nothing unless every cell has it."""
    if any(cell.exact is None for cell in cells):
        return Estimate(None, None)
    pictures = [answer.picture for cell in cells for answer in cell.judged]
    accepted, rounds = (
        np.concatenate([cell.exact[part] for cell in cells]) for part in range(2)
    )  # fmt: skip
    return ratio(accepted, rounds, pictures)


def _all_identical(judged: Sequence["Judged"]) -> bool | None:
    """None where equality was not asked of any answer."""
    seen = [answer.identical for answer in judged if answer.identical is not None]
    return all(seen) if seen else None


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in settings.items()}
