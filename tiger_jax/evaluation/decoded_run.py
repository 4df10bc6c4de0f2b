"""Real decoding of a pair on held-out scenes, beside its exact evaluation: S, c, v, and A counted.

Prompts of one kind are decoded together, as their answers end at about the same time. Every batch
is decoded plainly and speculatively, one after the other, so that drift hits both alike.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiger_jax.data.records import Request
from tiger_jax.decoding import costs, statistics
from tiger_jax.decoding.engine import Options
from tiger_jax.embedded import VLM
from tiger_jax.evaluation.comparison import Estimate, Rounds, paired_difference, ratio
from tiger_jax.evaluation.exact_acceptance import ExactRounds
from tiger_jax.evaluation.held_out import HeldOut
from tiger_jax.evaluation.progress import Counter
from tiger_jax.evaluation.scene_run import timed
from tiger_jax.head_loading import CHAIN, parse_tree
from tiger_jax.pipeline import Pipeline, Prepared, batches

AGREE_ERRORS = 3.0
"""Standard errors of the paired difference within which counted and exact A agree above T = 0."""
ROUNDING = 1e-6
"""What they may differ by at T = 0, where both count the same rounds."""


@dataclasses.dataclass
class Decoded:
    """What came out of decoding some prompts, by their number among all prompts."""

    accepted: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    tokens: int = 0
    identical: bool = True
    seconds: float = 0.0
    plain_seconds: float = 0.0
    prefill_seconds: float = 0.0
    plain_prefill_seconds: float = 0.0


def decode(
    config: Any, pair: Pipeline, held_out: HeldOut,
    exact: Mapping[tuple[float, int], ExactRounds],
) -> list[dict]:  # fmt: skip
    """A row for every temperature, batch size, and draft (chains of g tokens, and for heads trees)
    of the config."""
    asked = [
        number for number, (picture, _, kind) in enumerate(held_out.prompts)
        if picture < config.decode_scenes and kind in config.kinds
    ]  # fmt: skip
    settings = [
        (float(t), draft, size)
        for t in config.temperatures
        for draft in drafts(config, pair)
        for size in config.decode_batches
    ]  # fmt: skip
    counter, rows = Counter(len(settings) * len(asked), "prompts decoded"), []
    for temperature, draft, size in settings:
        own = draft.of(pair)
        prepared = _prepare(config, held_out, asked, temperature)
        groups = _groups(held_out, asked, prepared, size)
        found = Decoded()
        for group in groups:
            _add(found, own, group, {i: prepared[i] for i in group}, size)
            counter.add(len(group))
        first = [prepared[i] for i in groups[0]]
        cost = costs.measure(
            own.engine, own.arrays([p.inputs for p in first], size), [p.options for p in first]
        )
        pictures = [held_out.prompts[i][0] for i in found.accepted]
        spec = own.engine.drafter.spec
        rows.append(
            {"T": temperature, "g": spec.depth, "tree": draft.tree or CHAIN, "nodes": spec.nodes,
             "batch": size}
            | summarise(found, None if draft.tree else exact[temperature, draft.length], pictures,
                        cost, greedy=temperature == 0)
        )  # fmt: skip
    return rows


class Draft(NamedTuple):
    """What is drafted in a round."""

    length: int
    """Of a chain."""
    tree: str
    """As head_loading.parse_tree reads it; "" = a chain."""

    def of(self, pair: Pipeline) -> Pipeline:
        """The pair that drafts so."""
        if self.tree:
            return pair.with_tree(parse_tree(self.tree))
        return pair.with_draft_length(self.length)


def drafts(config: Any, pair: Pipeline) -> list[Draft]:
    """The chains, and for a head the trees, that a config asks for."""
    lengths = config.decode_draft_lengths or config.draft_lengths
    # A Medusa head drafts no more than it has blocks: longer chains would be the same again.
    depths = {pair.with_draft_length(g).engine.drafter.spec.depth: g for g in reversed(lengths)}
    lengths = [g for g in lengths if g in depths.values()]
    trees = () if pair.kind == VLM else config.decode_trees
    return [*(Draft(g, "") for g in lengths), *(Draft(0, tree) for tree in trees)]


def summarise(
    found: Decoded, exact: ExactRounds | None, pictures: Sequence[int], cost: costs.Costs,
    greedy: bool,
) -> dict:  # fmt: skip
    """The numbers of one row; exact A is that of the same prompts, where there is one."""
    chosen = np.array(list(found.accepted))
    counted = Rounds(
        np.array([sum(a) for a in found.accepted.values()]),
        np.array([len(a) for a in found.accepted.values()]),
    )
    own = ratio(*counted, pictures)
    exactly = difference = Estimate(None, None)
    if exact is not None:
        expected = Rounds(exact.expected_accepted[chosen], exact.expected_rounds[chosen])
        exactly = ratio(*expected, pictures)
        difference = paired_difference(counted, expected, pictures)
    pool = statistics.pool(found.accepted.values(), found.tokens)
    predicted = None
    if pool.tau is not None:
        predicted = statistics.predicted_speedup(
            pool.tau, cost.draft_length, cost.c, cost.v, cost.c_route
        )
    with_prefill = found.seconds + found.prefill_seconds
    return {
        "prompts": len(chosen), "A": own.value, "A_error": own.error, "tau": pool.tau,
        "exact_A": exactly.value, "exact_difference": difference.value,
        "exact_difference_error": difference.error, "agrees": _agrees(*difference, greedy),
        **{
            f"p_ge_{n}": pool.share_at_least(n) if n <= cost.draft_length else None
            for n in (2, 4, 8)
        },
        "rounds": pool.rounds, "tokens": pool.tokens, "c": cost.c, "c_route": cost.c_route,
        "v": cost.v, "predicted_speedup": predicted,
        "measured_speedup": found.plain_seconds / found.seconds if pool.rounds else None,
        "measured_speedup_with_prefill":
            (found.plain_seconds + found.plain_prefill_seconds) / with_prefill,
        "decode_seconds": found.seconds, "plain_decode_seconds": found.plain_seconds,
        "prefill_seconds": found.prefill_seconds,
        "plain_prefill_seconds": found.plain_prefill_seconds,
        "identical_to_plain": found.identical if greedy else None,
    }  # fmt: skip


def _agrees(difference: float | None, error: float | None, greedy: bool) -> bool | None:
    """None where there is too little to say so."""
    if difference is None or (error is None and not greedy):
        return None
    allowed = ROUNDING if greedy else AGREE_ERRORS * error
    return bool(abs(difference) <= allowed)


def _prepare(
    config: Any, held_out: HeldOut, asked: Sequence[int], temperature: float
) -> dict[int, Prepared]:
    """Number of a prompt -> the prompt with its own seed."""
    prepared = {}
    for number in asked:
        picture, question, kind = held_out.prompts[number]
        options = Options(
            max_new_tokens=config.max_new_tokens, temperature=temperature,
            seed=config.seed + number,
        )  # fmt: skip
        prompt = held_out.examples[picture].prompt(question)
        request = Request(id=f"{picture} {kind}", prompt=kind)
        prepared[number] = Prepared(request, prompt, options)
    return prepared


def _groups(
    held_out: HeldOut, asked: Sequence[int], prepared: Mapping[int, Prepared], size: int
) -> list[list[int]]:
    """Batches of one kind each."""
    groups = []
    for kind in dict.fromkeys(held_out.prompts[i][2] for i in asked):
        numbers = [i for i in asked if held_out.prompts[i][2] == kind]
        members = batches([prepared[i] for i in numbers], size)
        groups += [[numbers[place] for place in group] for group in members]
    return groups


def _add(
    found: Decoded, pair: Pipeline, numbers: Sequence[int], prepared: Mapping[int, Prepared],
    size: int,
) -> None:  # fmt: skip
    """Decode one batch both ways and count."""
    group = [prepared[i] for i in numbers]
    plain, fast = timed(pair.plain(), group, size), timed(pair, group, size)
    found.plain_seconds += plain.decode_seconds
    found.plain_prefill_seconds += plain.prefill_seconds
    found.seconds += fast.decode_seconds
    found.prefill_seconds += fast.prefill_seconds
    for number, output, alone in zip(numbers, fast.outputs, plain.outputs, strict=True):
        found.accepted[number] = list(output.accepted_lengths)
        found.tokens += len(output.tokens)
        found.identical &= output.tokens == alone.tokens
