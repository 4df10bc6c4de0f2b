"""The tables of the comparison with transformers: speeds, bars, costs of a round."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiger_jax.decoding.statistics import predicted_speedup
from tiger_jax.evaluation import peer_run, speed
from tiger_jax.evaluation.bandwidth import Bandwidth
from tiger_jax.evaluation.tables import MISSING, markdown, number, yes_no

if TYPE_CHECKING:
    from tiger_jax.evaluation.peer_run import PairResult

SPEED_HEADER = (
    "pair", "contender", "tokens/s", "ms/token", "x generate", "tokens/s with prefill",
    "x generate with prefill", "tokens/round", "ms/round", "MB/round", "GB/s",
    "of memory bandwidth", "same tokens",
)  # fmt: skip
BAR_HEADER = ("pair", "bar", "needed", "without prefill", "with prefill", "result")
COST_HEADER = (
    "pair", "verifier", "drafter", "c", "v", "A", "predicted S", "measured S",
    "round / step", "round / step, assisted",
)  # fmt: skip
NOTES = (
    "tokens/s and ms/token: after the first token (assisted: after the first round), so without "
    "prefill; transformers' tokens are timed by a streamer. Medians over repetitions in turn.",
    "MB/round: weights of the text model and keys and values that a step must read (speculative: "
    "one verification and its draft steps).",
    "c, v: one draft step, and verification with commit, over one plain step. round / step: one "
    "speculative round over one plain step of the same library.",
)


def build(
    results: Sequence["PairResult"], reading: Bandwidth, cache: int | None,
    settings: Mapping[str, Any], versions: Mapping[str, str], load: float = 0.0,
) -> dict:  # fmt: skip
    """Everything measured, as plain numbers; `load` is the load average before the run."""
    draft_length = settings["draft_length"]
    pairs = [_pair(result, reading, cache, draft_length) for result in results]
    bars = [
        bar for result, pair in zip(results, pairs, strict=True)
        for bar in _bars(pair, settings[result.name]["bars"])
    ]  # fmt: skip
    return {
        "settings": _plain(settings), "versions": dict(versions),
        "bandwidth_bytes_per_second": reading.bytes_per_second, "bandwidth_how": reading.how,
        "last_level_cache_bytes": cache, "load_before": load, "pairs": pairs, "bars": bars,
    }  # fmt: skip


def text(report: Mapping[str, Any]) -> str:
    """Three tables and what their numbers mean."""
    pairs = report["pairs"]
    speeds = [_speed_cells(pair, row) for pair in pairs for row in pair["contenders"]]
    rate = report["bandwidth_bytes_per_second"] / 1e9
    size = report["settings"]["bandwidth_mib"]
    return "\n".join([
        markdown(SPEED_HEADER, speeds), "",
        markdown(BAR_HEADER, [_bar_cells(bar) for bar in report["bars"]]), "",
        markdown(COST_HEADER, [_cost_cells(pair) for pair in pairs]), "",
        f"memory bandwidth {rate:.1f} GB/s (reading {size} MiB with {report['bandwidth_how']})",
        *_remarks(report), *NOTES,
        "   ".join(f"{name} {version}" for name, version in report["versions"].items()),
    ])  # fmt: skip


def _pair(result: "PairResult", reading: Bandwidth, cache: int | None, draft_length: int) -> dict:
    speeds = {name: speed.summarise(runs) for name, runs in result.runs.items()}
    reference, plain = speeds[peer_run.GENERATE], speeds[peer_run.PLAIN]
    rows = [
        _contender(name, own, reference, reading, result, draft_length)
        | {"same_tokens": speed.same_tokens(result.runs[name], result.runs[peer_run.PLAIN])}
        for name, own in speeds.items()
    ]
    rows += [{"name": name, "failed": why} for name, why in result.failed.items()]
    assisted = speeds.get(peer_run.ASSISTED_SEEING) or speeds.get(peer_run.ASSISTED)
    tau = speeds[peer_run.SPECULATIVE].tokens_a_round
    c, v = result.costs.c, result.costs.v
    return {
        "name": result.name, "params": list(result.params), "contenders": rows,
        "blind_drafts": result.blind_drafts, "c": c, "v": v, "A": None if tau is None else tau - 1,
        "draft_length": draft_length,
        "predicted_speedup": predicted_speedup(tau, draft_length, c, v) if tau else None,
        "measured_speedup": _ratio(speeds[peer_run.SPECULATIVE].decode_rate, plain.decode_rate),
        "round_in_steps": result.costs.round / result.costs.plain_step,
        "assisted_round_in_steps": assisted
        and _ratio(assisted.round_seconds, reference.round_seconds),
        "step_bytes": result.bytes[0],
        "in_cache": None if cache is None else result.bytes[0] < cache,
    }  # fmt: skip


def _contender(
    name: str, own: speed.Speed, reference: speed.Speed, reading: Bandwidth,
    result: "PairResult", draft_length: int,
) -> dict:  # fmt: skip
    verifier, drafter = result.bytes
    drafts = 0 if name in (peer_run.GENERATE, peer_run.PLAIN) else draft_length
    round_bytes = verifier + drafts * drafter
    rate = round_bytes / own.round_seconds if own.round_seconds else None
    return {
        "name": name, **dataclasses.asdict(own),
        "decode_tokens_per_second": own.decode_rate, "tokens_per_second": own.rate,
        "ratio": _ratio(own.decode_rate, reference.decode_rate),
        "ratio_with_prefill": _ratio(own.rate, reference.rate),
        "tokens_per_round": own.tokens_a_round, "round_seconds": own.round_seconds,
        "round_bytes": round_bytes, "bytes_per_second": rate,
        "bandwidth_share": rate and rate / reading.bytes_per_second,
    }  # fmt: skip


def _bars(pair: Mapping[str, Any], needed: Mapping[str, float]) -> Iterator[dict]:
    """The bars that a config sets for this pair, each met only without and with prefill."""
    rows = {row["name"]: row for row in pair["contenders"] if "failed" not in row}
    assisted = [rows[n] for n in (peer_run.ASSISTED, peer_run.ASSISTED_SEEING) if n in rows]
    comparisons = {
        "plain_over_generate": (peer_run.PLAIN, [rows[peer_run.GENERATE]]),
        "speculative_over_assisted": (peer_run.SPECULATIVE, assisted),
        "speculative_over_plain": (peer_run.SPECULATIVE, [rows[peer_run.PLAIN]]),
    }
    for name, least in needed.items():
        ours, rivals = comparisons[name]
        without, with_prefill = (
            _ratio(rows[ours][key], max((rival[key] or 0 for rival in rivals), default=None))
            for key in ("decode_tokens_per_second", "tokens_per_second")
        )
        measured = without is not None and with_prefill is not None
        yield {
            "pair": pair["name"], "bar": name, "needed": least,
            "without_prefill": without, "with_prefill": with_prefill,
            "passed": without >= least and with_prefill >= least if measured else None,
        }  # fmt: skip


def _remarks(report: Mapping[str, Any]) -> Iterator[str]:
    cache, cores = report["last_level_cache_bytes"], os.cpu_count() or 1
    if report["load_before"] > cores / 4:
        yield (
            f"NOT QUIET: load average {report['load_before']:.1f} on {cores} cores before the run; "
            "such times say little"
        )
    for pair in report["pairs"]:
        size = pair["step_bytes"] / 1e6
        if pair["in_cache"]:
            yield (
                f"{pair['name']}: the {size:.1f} MB of a step fit the {cache / 1e6:.1f} MB "
                "last-level cache, so memory bandwidth is not its limit"
            )
        if pair["blind_drafts"]:
            yield (
                f"{pair['name']}: left alone, transformers' assisted generation drafts without "
                "the picture (it reaches the verifier only); 'picture restored' hands it over. "
                "Bars are against the faster of both"
            )
        for row in pair["contenders"]:
            if "failed" in row:
                yield f"{pair['name']}: {row['name']} failed: {row['failed']}"


def _speed_cells(pair: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    if "failed" in row:
        return [pair["name"], row["name"], "failed", *[MISSING] * (len(SPEED_HEADER) - 3)]
    rate, share = row["decode_tokens_per_second"], row["bandwidth_share"]
    return [
        pair["name"], row["name"], number(rate, ".0f"), number(rate and 1e3 / rate, ".2f"),
        number(row["ratio"], ".2f"), number(row["tokens_per_second"], ".0f"),
        number(row["ratio_with_prefill"], ".2f"), number(row["tokens_per_round"], ".2f"),
        number(_times(row["round_seconds"], 1e3), ".2f"), f"{row['round_bytes'] / 1e6:.1f}",
        number(_times(row["bytes_per_second"], 1e-9), ".1f"),
        number(share, ".0%") + (" (cache)" if pair["in_cache"] else ""),
        yes_no(row["same_tokens"]),
    ]  # fmt: skip


def _bar_cells(bar: Mapping[str, Any]) -> list[str]:
    result = {True: "pass", False: "MISS", None: "not measured"}[bar["passed"]]
    return [
        bar["pair"], bar["bar"].replace("_", " "), f"{bar['needed']:g}x",
        number(bar["without_prefill"], ".2f"), number(bar["with_prefill"], ".2f"), result,
    ]  # fmt: skip


def _cost_cells(pair: Mapping[str, Any]) -> list[str]:
    return [
        pair["name"], *(f"{count / 1e6:.1f} M" for count in pair["params"]),
        f"{pair['c']:.3f}", f"{pair['v']:.2f}", number(pair["A"], ".2f"),
        number(pair["predicted_speedup"], ".2f"), number(pair["measured_speedup"], ".2f"),
        f"{pair['round_in_steps']:.2f}", number(pair["assisted_round_in_steps"], ".2f"),
    ]  # fmt: skip


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in settings.items()}
