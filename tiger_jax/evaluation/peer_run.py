"""Plain and speculative decoding beside transformers' `generate`, plain and assisted.

Batch 1, greedy, the same folders in float32, the same prompts, one process, all cores.
"""

import contextlib
import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from tiger_jax import embedded
from tiger_jax.command_line import check_at_least, check_subset
from tiger_jax.data.scene_language import KINDS
from tiger_jax.decoding import costs
from tiger_jax.decoding.engine import Options
from tiger_jax.errors import UserError
from tiger_jax.evaluation import bandwidth, peer_report, random_pair, scene_prompts, speed
from tiger_jax.evaluation.scene_prompts import SceneQuestion
from tiger_jax.evaluation.speed import Decoder, Timing
from tiger_jax.pipeline import Pipeline, Prepared
from tiger_jax.training.progress import Progress

PAIRS = ("embedded", "random")
GENERATE = "transformers generate"
ASSISTED = "transformers assisted"
ASSISTED_SEEING = "transformers assisted, picture restored"
PLAIN = "tiger_jax plain"
SPECULATIVE = "tiger_jax speculative"


@dataclasses.dataclass(frozen=True)
class PairResult:
    """What was measured of one pair."""

    name: str
    params: tuple[int, int]
    """Parameters of verifier and drafter, towers included."""
    runs: dict[str, list[list[Timing]]]
    """Contender -> [repeat][prompt]."""
    failed: dict[str, str]
    """Contender -> why it could not run."""
    blind_drafts: bool
    """Whether transformers' drafter, left alone, saw no picture."""
    costs: costs.Costs
    bytes: tuple[float, float]
    """Bytes that one step of verifier and of drafter reads, at the middle of an answer."""


def evaluate(config: Any) -> tuple[dict, str]:
    """Run the peer config: (report, text to print). Raises UserError."""
    check(config)
    from tiger_jax.evaluation import peer_transformers

    # Contenders must share the hardware: transformers runs on the CPU here.
    if jax.default_backend() != "cpu":
        raise UserError(
            f"peer_transformers: expected the CPU (JAX_PLATFORMS=cpu), got {jax.default_backend()}"
        )
    load = os.getloadavg()[0]
    results = []
    progress = Progress(len(config.pairs))
    for name in config.pairs:
        progress.line(f"{name} pair: loading it into both libraries")
        with _folders(name, config) as (verifier, drafter):
            results.append(_measure_pair(name, config[name], config, verifier, drafter))
    progress.line("memory bandwidth")
    reading = bandwidth.measure(
        config.bandwidth_mib * 2**20, {"torch.sum": peer_transformers.read_all}
    )
    report = peer_report.build(
        results, reading, bandwidth.last_level_cache(), config.to_dict(),
        {"jax": jax.__version__, **peer_transformers.VERSIONS}, load,
    )  # fmt: skip
    return report, peer_report.text(report)


def check(config: Any) -> None:
    """UserError for the first field that no run can have."""
    check_subset(config, "pairs", PAIRS)
    check_at_least(config, 1, "repeats", "draft_length", "bandwidth_mib")
    check_at_least(config, 0, "threads")
    for name in config.pairs:
        check_at_least(config[name], 1, "scenes", "max_new_tokens")
        check_subset(config[name], "kinds", tuple(KINDS))
    if not 0 <= config.draft_confidence < 1:
        raise UserError(f"draft_confidence: expected 0 <= P < 1, got {config.draft_confidence}")


@contextlib.contextmanager
def _folders(name: str, config: Any) -> Iterator[tuple[Path, Path]]:
    """Folders of a pair; those of a random one are temporary unless the config names a place."""
    if name == "embedded":
        yield (
            Path(config.embedded.verifier or embedded.verifier(config.pair)),
            Path(config.embedded.drafter or embedded.drafter("full", embedded.VLM, config.pair)),
        )
        return
    sizes = {role: config.random[role].to_dict() for role in random_pair.ROLES}
    with tempfile.TemporaryDirectory() as temporary:
        verifier, drafter = random_pair.write_pair(Path(config.random.folder or temporary), sizes)
        yield verifier, drafter


def _measure_pair(name: str, own: Any, config: Any, verifier: Path, drafter: Path) -> PairResult:
    from tiger_jax.evaluation.peer_transformers import Peer

    pipeline = Pipeline.load(
        verifier, drafter, draft_length=config.draft_length, confidence=config.draft_confidence
    )
    if pipeline.kind != embedded.VLM:
        raise UserError(f"{drafter}: expected a model, transformers cannot draft with a head")
    peer = Peer(
        verifier, drafter, draft_length=config.draft_length, confidence=config.draft_confidence,
        max_new_tokens=own.max_new_tokens, threads=config.threads,
    )  # fmt: skip
    asked = list(scene_prompts.questions(own.scenes, config.seed, own.kinds))
    options = Options(max_new_tokens=own.max_new_tokens)
    prepared = [scene_prompts.prepare(pipeline, question, options) for question in asked]
    decoders, failed = _runnable(_decoders(pipeline, peer, asked, prepared))
    runs = speed.interleave(decoders, len(asked), config.repeats, f"the {name} pair")
    Progress(1).line(f"{name} pair: costs of a round")
    cost = costs.measure(pipeline.engine, pipeline.arrays([prepared[0].inputs]), [options])
    return PairResult(
        name=name,
        params=(random_pair.count_params(verifier), random_pair.count_params(drafter)),
        runs=runs, failed=failed, blind_drafts=peer.blind_drafts, costs=cost,
        bytes=_step_bytes(pipeline, prepared, runs[PLAIN][0]),
    )  # fmt: skip


def _decoders(
    pipeline: Pipeline, peer: Any, asked: Sequence[SceneQuestion], prepared: Sequence[Prepared]
) -> dict[str, Decoder]:
    """The contenders, all over the same prompts."""
    inputs = [peer.inputs(scene_prompts.prompt_text(pipeline, q), q.scene.image) for q in asked]
    for question, ours, theirs in zip(asked, prepared, inputs, strict=True):
        if ours.inputs.tokens.tolist() != theirs["input_ids"][0].tolist():
            raise UserError(
                f"{question.id}: expected the same prompt ids as transformers' processor"
            )
    return {
        GENERATE: lambda i: peer.plain(inputs[i]),
        ASSISTED: lambda i: peer.assisted(inputs[i]),
        ASSISTED_SEEING: lambda i: peer.assisted(inputs[i], show_picture=True),
        PLAIN: functools.partial(_decode, pipeline.plain(), prepared),
        SPECULATIVE: functools.partial(_decode, pipeline, prepared),
    }


def _decode(pipeline: Pipeline, prepared: Sequence[Prepared], prompt: int) -> Timing:
    """One of our answers; the clock covers padding, copies, decoding and the final text."""
    began = time.perf_counter()
    output = pipeline.run([prepared[prompt]], 1)
    seconds = time.perf_counter() - began
    answer = output.outputs[0]
    return Timing(
        tokens=tuple(answer.tokens),
        seconds=seconds,
        decode_seconds=output.decode_seconds,
        decode_tokens=len(answer.tokens) - 1,
        rounds=answer.rounds,
    )


def _runnable(decoders: dict[str, Decoder]) -> tuple[dict[str, Decoder], dict[str, str]]:
    """The contenders that can answer the first prompt, and why the others cannot.

    Only assisted generation may fail: it did for LLaVA-NeXT with pictures in some versions
    (huggingface/transformers#35450).
    """
    failed = {}
    for name in (ASSISTED, ASSISTED_SEEING):
        try:
            decoders[name](0)
        except Exception as error:  # whatever the library raises, the table says so
            failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return {name: d for name, d in decoders.items() if name not in failed}, failed


def _step_bytes(
    pipeline: Pipeline, prepared: Sequence[Prepared], answers: Sequence[Timing]
) -> tuple[float, float]:
    """Bytes a step of verifier and drafter, at the mean position of the answers' tokens."""
    count = len(prepared)
    prompt = sum(len(p.inputs.tokens) for p in prepared) / count
    positions = prompt + sum(len(t.tokens) for t in answers) / count / 2
    engine = pipeline.engine
    return (
        bandwidth.step_bytes(engine.model, positions),
        bandwidth.step_bytes(engine.drafter.model, positions),
    )
