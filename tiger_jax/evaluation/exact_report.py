"""The comparison of drafters as numbers (JSON) and as Markdown tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiger_jax.evaluation.comparison import Rounds, paired_difference, ratio
from tiger_jax.evaluation.exact_acceptance import ExactRounds
from tiger_jax.evaluation.plots import KPoint
from tiger_jax.evaluation.tables import MISSING, markdown, number, with_error, yes_no
from tiger_jax.evaluation.variants import Variant

LEVELS = (2, 4, 8)
IDENTITY = ("variant", "selector", "k", "pooled", "T", "g")
DECODED_HEADER = (
    *IDENTITY, "tree", "nodes", "batch", "prompts", "A", "exact A", "agree", "tau", "rounds",
    "tokens", "c", "c_route", "v", "predicted S", "measured S", "with prefill",
    "identical to plain",
)  # fmt: skip


class Prompts(NamedTuple):
    """What the rows of every ExactRounds are."""

    places: Sequence[tuple[int, int, str]]
    """(picture, question, kind)."""
    lengths: Mapping[float, np.ndarray]
    """Tokens of each response at each temperature."""

    def of(self, kinds: Sequence[str]) -> np.ndarray:
        """Numbers of the prompts of some kinds."""
        return np.flatnonzero([kind in kinds for _, _, kind in self.places])

    def pictures(self, chosen: np.ndarray) -> list[int]:
        """What standard errors are clustered by."""
        return [self.places[i][0] for i in chosen]


def build(
    config: Any, found: Sequence[Variant], missing: Sequence[str], reference: str,
    verifier: Path, exact: Mapping[str, Mapping[tuple[float, int], ExactRounds]],
    decoded: Sequence[dict], prompts: Prompts, hardware: str,
) -> dict:  # fmt: skip
    """The report: rows of every variant, temperature, g and kind of question, and of all kinds."""
    run = {"hardware": hardware, "seed": config.seed}
    kinds = tuple(config.kinds)
    rows = []
    for variant in found:
        same = identity(variant, verifier)
        for (temperature, g), rounds in exact[variant.name].items():
            other = None if variant.name == reference else exact[reference][temperature, g]
            for name, part in [*((kind, (kind,)) for kind in kinds), ("all", kinds)]:
                chosen = prompts.of(part)
                rows.append(
                    same | {"T": temperature, "g": g, "kind": name}
                    | summarise(rounds, other, chosen, prompts.pictures(chosen))
                    | {"tokens": int(prompts.lengths[temperature][chosen].sum())} | run
                )  # fmt: skip
    return {
        "settings": config.to_dict(), "reference": reference, "left_out": list(missing),
        "rows": rows, "decoded": [row | run for row in decoded], **run,
    }  # fmt: skip


def identity(variant: Variant, verifier: Path) -> dict:
    """Which drafter a row is about."""
    trained = variant.trained
    return {
        "variant": variant.name, "drafter": str(variant.folder), "verifier": str(verifier),
        "drafter_kind": variant.kind, "parameters": variant.parameters,
        "selector": variant.sees, "k": variant.routed, "pooled": variant.pooled,
        "query": variant.router.query if variant.routes else None,
        "trained_k": trained.routed_tokens if trained and trained.routes else None,
    }  # fmt: skip


def summarise(
    rounds: ExactRounds, reference: ExactRounds | None, chosen: np.ndarray,
    pictures: Sequence[int],
) -> dict:  # fmt: skip
    """The numbers of one row; the difference is A minus that of the reference, paired by prompt."""
    own = pooled(rounds, chosen)
    accepted = ratio(*own, pictures)
    difference = (None, None)
    if reference is not None:
        difference = paired_difference(own, pooled(reference, chosen), pictures)
    levels = {}
    for level in LEVELS:
        share = None  # no round of g < level drafts can tell
        if level <= rounds.p_at_least.shape[1]:
            share = ratio(rounds.p_at_least[chosen, level - 1], own.rounds, pictures).value
        levels[f"p_ge_{level}"] = share
    return {
        "prompts": len(chosen), "A": accepted.value, "A_error": accepted.error,
        "tau": None if accepted.value is None else accepted.value + 1, **levels,
        "rounds": float(own.rounds.sum()), "difference": difference[0],
        "difference_error": difference[1],
    }  # fmt: skip


def pooled(rounds: ExactRounds, chosen: np.ndarray) -> Rounds:
    """Accepted drafts and rounds of some prompts."""
    return Rounds(rounds.expected_accepted[chosen], rounds.expected_rounds[chosen])


def text(report: Mapping[str, Any]) -> str:
    """The tables, and under them what their numbers mean."""
    settings = report["settings"]
    kinds = list(settings["kinds"])
    clips = f" and {settings['clips']} clips" if settings["clips"] else ""
    header = (
        *IDENTITY, "prompts", "A", *kinds, "tau", *(f"P(A>={n})" for n in LEVELS), "rounds",
        "tokens", "difference",
    )  # fmt: skip
    lines = [
        markdown(header, _exact_cells(report["rows"], kinds)),
        "",
        f"Exact (in expectation over the verifier's own answers) on {settings['scenes']} pictures"
        f"{clips}, from number {settings['first_scene']} of those held out; ± is one standard "
        f'error, clustered by picture. difference: A - A of "{report["reference"]}", paired by '
        f"prompt. {report['hardware']}, seed {report['seed']}.",
    ]
    if report["left_out"]:
        lines.append(f"Left out, no folder: {', '.join(report['left_out'])}.")
    if report["decoded"]:
        lines += [
            "", markdown(DECODED_HEADER, [_decoded_cells(row) for row in report["decoded"]]), "",
            f"Decoded: {settings['decode_scenes']} of the pictures. S: plain decoding time / "
            "speculative decoding time. agree: A counted and exact A on the same prompts are equal "
            "at T = 0, and above it differ by less than three standard errors of their paired "
            "difference.",
        ]  # fmt: skip
    return "\n".join(lines)


def k_points(report: Mapping[str, Any]) -> list[KPoint]:
    """The points of the figure of A by k: of the first drafter that routes, whatever its k, and of
    the variant "full", or else the first that sees everything."""
    rows = [row for row in report["rows"] if row["kind"] == "all" and row["A"] is not None]
    routed = next(
        ((row["drafter"], row["selector"]) for row in rows if row["k"] is not None), None
    )  # fmt: skip
    seeing = [row["variant"] for row in rows if row["selector"] == "full"]
    full = "full" if "full" in seeing else next(iter(seeing), None)
    return [
        KPoint(row["k"], row["T"], row["g"], row["A"], row["A_error"])
        for row in rows
        if row["variant"] == full
        or (row["k"] is not None and (row["drafter"], row["selector"]) == routed)
    ]


def _exact_cells(rows: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> list[list[str]]:
    """One line a variant, temperature and g; A of each kind beside A of all."""
    by_kind = {(row["variant"], row["T"], row["g"], row["kind"]): row for row in rows}
    return [
        [
            *_identity_cells(row), str(row["prompts"]), with_error(row["A"], row["A_error"], ".3f"),
            *(number(by_kind[row["variant"], row["T"], row["g"], kind]["A"], ".2f")
              for kind in kinds),
            number(row["tau"], ".3f"), *(number(row[f"p_ge_{n}"], ".2f") for n in LEVELS),
            f"{row['rounds']:.0f}", str(row["tokens"]),
            with_error(row["difference"], row["difference_error"], "+.3f").replace("± +", "± "),
        ]
        for row in rows
        if row["kind"] == "all"
    ]  # fmt: skip


def _decoded_cells(row: Mapping[str, Any]) -> list[str]:
    return [
        *_identity_cells(row), row["tree"], str(row["nodes"]), str(row["batch"]),
        str(row["prompts"]),
        with_error(row["A"], row["A_error"], ".3f"), number(row["exact_A"], ".3f"),
        yes_no(row["agrees"]), number(row["tau"], ".3f"), str(row["rounds"]), str(row["tokens"]),
        number(row["c"], ".3f"), number(row["c_route"], ".3f"), number(row["v"], ".2f"),
        number(row["predicted_speedup"], ".2f"), number(row["measured_speedup"], ".2f"),
        number(row["measured_speedup_with_prefill"], ".2f"), yes_no(row["identical_to_plain"]),
    ]  # fmt: skip


def _identity_cells(row: Mapping[str, Any]) -> list[str]:
    k = {"full": "all", "none": "0", "resampler": MISSING}.get(row["selector"], str(row["k"]))
    pooled = MISSING if row["pooled"] is None else str(row["pooled"])
    return [
        row["variant"], row["selector"], k, pooled, f"{row['T']:g}",
        str(row["g"]),
    ]  # fmt: skip
