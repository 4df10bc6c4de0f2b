"""Draft heads at LLaVA-1.6's sizes as XLA's GPU compiler sees them: bytes, kernels, copies, graphs.

A step of one token is bound by memory, so the cost of drafting is a ratio of bytes: c is what a
head step reads over what a verifier step reads. Two counts stand side by side: the least bytes,
each weight and cache row once, from shapes; and the bytes that the compiled kernels move.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from tiger_jax.command_line import check_at_least, check_subset
from tiger_jax.decoding.drafters.tree import DynamicTree
from tiger_jax.dry_run import gpu_compiler
from tiger_jax.dry_run.abstract_verifier import PROMPT_TEXT, TARGETS, Sizes, Verifier
from tiger_jax.dry_run.cards import CARDS, Card
from tiger_jax.errors import UserError
from tiger_jax.evaluation import head_programs
from tiger_jax.evaluation.head_programs import HeadSetting, Work
from tiger_jax.evaluation.progress import Counter
from tiger_jax.evaluation.tables import MISSING, markdown, number, yes_no

PLAIN = "plain step"
HEADER = (
    "program", "target", "card", "batch", "layers", "weights GB", "caches GB", "least GB",
    "moved GB", "c", "c moved", "temp MB", "kernels", "whole-cache ops", "one graph",
)  # fmt: skip
Build = Callable[[Verifier, Sizes], Work]


def evaluate(config: Any) -> tuple[dict, str]:
    """Run the head_compile config: (report, text to print). Raises UserError."""
    check(config)
    gpu_compiler.check_installed()
    programs = _programs(config)
    total = len(config.targets) * len(config.batches) * len(config.cards) * len(programs)
    counter, rows = Counter(total, "programs compiled"), []
    for target in config.targets:
        for batch in config.batches:
            sizes = Sizes(batch, config.visual_tokens, config.text_rows)
            works = _works(config, target, sizes, programs)
            for card in config.cards:
                about = {"target": target, "card": CARDS[card].name, "batch": batch}
                for name, (least, work, layers) in works.items():
                    row = {"program": name, **about, "layers": layers}
                    rows.append(row | _read(CARDS[card], least, work))
                    counter.add(1)
    _add_costs(rows)
    report = {"settings": config.to_dict(), "rows": rows}
    return report, text(report)


def check(config: Any) -> None:
    """UserError for the first field that no run can have."""
    check_subset(config, "targets", TARGETS)
    check_subset(config, "cards", CARDS)
    check_at_least(config, 1, "few_layers", "visual_tokens", "routed_tokens", "draft_length")
    check_at_least(config, PROMPT_TEXT + 1, "text_rows")
    check_at_least(config, 0, "width", "router_width")
    if not config.batches or min(config.batches) < 1:
        raise UserError(f"batches: expected positive numbers, got {config.batches}")
    if config.route_every not in ("round", "step"):
        raise UserError(f"route_every: expected round or step, got {config.route_every!r}")
    if len(config.tree) != 3:
        raise UserError(f"tree: expected nodes, expansions and width, got {config.tree}")
    DynamicTree(*config.tree)


def text(report: Mapping[str, Any]) -> str:
    """The table, and under it what its numbers mean."""
    settings = report["settings"]
    return "\n".join([
        markdown(HEADER, [_cells(row) for row in report["rows"]]),
        "",
        f"bfloat16, caches of {settings['visual_tokens']} visual and {settings['text_rows']} text "
        f"rows; a routed head has the text rows and k {settings['routed_tokens']}, routed anew "
        f"every {settings['route_every']}. Compiled without a device and without autotuning; no "
        "figure is a time.",
        "weights, caches, least: bytes of one turn at full depth when each is read once. moved: "
        "what the kernels of the turn read and write together. c: least of a head step over least "
        "of the plain step; c moved: the same of moved. temp, kernels, whole-cache ops (kernels "
        "that write an array as large as a cache and are no update in place) and one graph are "
        "those of the compiled program, which has `layers` layers of the verifier (-: none).",
    ])  # fmt: skip


def _programs(config: Any) -> dict[str, Build]:
    """What is compiled, by name."""
    routed, full = (
        HeadSetting(
            visual, config.width, config.routed_tokens, config.route_every, config.router_width
        )
        for visual in ("routed", "full")
    )

    def step(setting: HeadSetting) -> Build:
        return lambda verifier, sizes: head_programs.head_step(verifier, sizes, setting)

    def round_(tree: tuple[int, ...] | None) -> Build:
        return lambda verifier, sizes: head_programs.head_round(
            verifier, sizes, routed, config.draft_length, tree
        )

    tree = tuple(config.tree)
    return {
        PLAIN: head_programs.plain_step,
        "head step, routed": step(routed),
        "head step, full": step(full),
        f"round, chain {config.draft_length}": round_(None),
        f"round, tree {'/'.join(map(str, tree))}": round_(tree),
    }


def _works(
    config: Any, target: str, sizes: Sizes, programs: Mapping[str, Build]
) -> dict[str, tuple[Work, Work, int]]:
    """Program -> (at full depth, as it is compiled, layers of the verifier in the latter)."""
    whole = Verifier.of(target)
    shallow = Verifier.of(target, config.few_layers)
    works = {}
    for name, build in programs.items():
        work = build(whole, sizes)
        if not work.runs_verifier or sizes.batch in config.whole_batches:
            works[name] = (work, work, whole.layers if work.runs_verifier else 0)
        else:
            works[name] = (work, build(shallow, sizes), shallow.layers)
    return works


def _read(card: Card, least: Work, work: Work) -> dict:
    began = time.perf_counter()
    compiled = gpu_compiler.compile_loop(card, work.function, work.arguments, work.donate)
    program = compiled.program
    # The entry's launches are those of the body too.
    whole = program.whole_arrays(program.entry, work.cache_sizes)
    return {
        "weight_bytes": least.weight_bytes, "cache_bytes": least.cache_bytes,
        "least_bytes": least.step_bytes,
        "moved_bytes": program.bytes_moved(program.body) if work is least else None,
        "temporary_bytes": compiled.temporary_bytes, "kernels": compiled.launches.kernels,
        "graphs": compiled.launches.graphs, "one_graph": compiled.launches.one_graph,
        "whole_cache_ops": whole, "seconds": time.perf_counter() - began,
    }  # fmt: skip


def _add_costs(rows: list[dict]) -> None:
    """c of head steps, against the plain step of the same target, card and batch."""
    plain = {(r["target"], r["card"], r["batch"]): r for r in rows if r["program"] == PLAIN}
    for row in rows:
        base = plain[row["target"], row["card"], row["batch"]]
        is_step = row["program"].startswith("head step")
        row["c"] = row["least_bytes"] / base["least_bytes"] if is_step else None
        known = is_step and base["moved_bytes"] and row["moved_bytes"]
        row["c_moved"] = row["moved_bytes"] / base["moved_bytes"] if known else None


def _cells(row: Mapping[str, Any]) -> list[str]:
    def giga(name: str) -> str:
        return number(row[name] / 1e9 if row[name] is not None else None, ".2f")

    layers = str(row["layers"] or MISSING)
    return [
        row["program"], row["target"], row["card"], str(row["batch"]), layers,
        giga("weight_bytes"), giga("cache_bytes"), giga("least_bytes"), giga("moved_bytes"),
        number(row["c"], ".4f"), number(row["c_moved"], ".4f"),
        f"{row['temporary_bytes'] / 1e6:.1f}", str(row["kernels"]),
        str(len(row["whole_cache_ops"])), yes_no(row["one_graph"]),
    ]  # fmt: skip
