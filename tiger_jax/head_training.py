"""Training a head on a verifier's own states: the objective `head` (configs/head.py).

The verifier answers (drafting.Lessons), one pass over its answers keeps its hidden states, and any
number of heads learn from both.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiger_jax.data import mixtures
from tiger_jax.data.draft_batches import PackDrafts, TeachExample
from tiger_jax.data.feature_cache import FeatureCache
from tiger_jax.data.head_batches import PackHeads, TeachHead
from tiger_jax.drafting import Lessons, check_own_draws
from tiger_jax.errors import UserError
from tiger_jax.feature_teacher import FeatureTeacher
from tiger_jax.head_methods import LAST, head_config, kept_taps
from tiger_jax.models.head import DraftHead, HeadConfig, shared_weights
from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.objectives import Objective
from tiger_jax.routing.router import RouterConfig
from tiger_jax.sharding import processes
from tiger_jax.sharding import rules as sharding_rules
from tiger_jax.training.checkpoint import CHECKPOINTS
from tiger_jax.training.draft_batch import DraftBatch, draft_batch
from tiger_jax.training.head_batch import HeadBatch, head_batch
from tiger_jax.training.head_blocks import BlockHead
from tiger_jax.training.head_features import FeatureSettings, with_features
from tiger_jax.training.head_step import HeadLossSettings, make_head_loss
from tiger_jax.training.run_folder import replace_folder
from tiger_jax.weights.fingerprint import fingerprint
from tiger_jax.weights.head_io import HeadFolder, read_head, write_head

DRAFT_IDS = "draft_ids.npy"
"""Of a compact draft vocabulary, in the run folder."""


def block_head(config: Any, model: VisionLanguageModel) -> BlockHead:
    """The head in its training form. Raises UserError."""
    shape = head_config(config.head.to_dict(), model.config.text)
    routed = shape.visual == "routed"
    return BlockHead(
        DraftHead(shape, model.dtype), RouterConfig(**config.router.to_dict()) if routed else None,
        config.route_query, config.route_every,
    )  # fmt: skip


def check_head(config: Any) -> None:
    """UserError for the first field of a head's training that cannot be."""
    settings = HeadLossSettings(**config.loss.to_dict())
    if settings.objective == "expected_acceptance":
        check_own_draws(config)
    if config.head.taps and config.head.features == LAST:
        raise UserError(f"taps: expected none with features {LAST}, got {config.head.taps}")
    if config.head.layout == "medusa" and config.draft_length > config.head.medusa_heads:
        raise UserError(
            f"draft_length: expected at most medusa_heads = {config.head.medusa_heads}, "
            f"got {config.draft_length}"
        )


@dataclasses.dataclass(frozen=True)
class HeadLessons:
    """Prompts with the verifier's answers and its states along them."""

    lessons: Lessons
    features: FeatureCache | None
    """None: the verifier is asked online, at each step."""
    settings: FeatureSettings
    """What is kept, for all methods alike."""

    @classmethod
    def prepare(cls, config: Any, wanted: tuple[int, ...]) -> "HeadLessons":
        """Let the verifier answer, and read, what the caches lack. Raises UserError."""
        lessons = Lessons.prepare(config)
        taps = kept_taps(wanted, lessons.verifier.config.text.num_layers)
        settings = FeatureSettings(taps, **config.features.to_dict())
        if config.online_features:
            return cls(lessons, None, settings)
        described = {"verifier": fingerprint(config.model), "dtype": config.compute_dtype}
        described |= {"answers": lessons.cache.folder.name} | dataclasses.asdict(settings)
        cache = FeatureCache(config.cache_dir, described)
        size = max(1, config.teacher_batch // 4)

        def fill(*work: Any) -> None:
            engine = lessons.verifier.engine(lessons.verifier.answer_mesh)
            FeatureTeacher(engine, settings, size).fill(cache, lessons.cache, *work)

        for source in (*lessons.sources, *lessons.held_out):
            lessons.complete(source, cache, fill, "read")
        return cls(lessons, cache, settings)

    def stream(self, config: Any, held_out: bool) -> Any:
        """Endless shuffled batches, or the held-out ones once through, in order."""
        lessons, length = self.lessons, config.draft_length
        cuts = 0 if held_out else config.cuts
        if self.features is None:
            teach = TeachExample(lessons.ask, lessons.cache, length, cuts)
            pack = PackDrafts(lessons.verifier.config, length, 1, "full")
        else:
            teach = TeachHead(lessons.ask, lessons.cache, self.features, length, cuts)
            pack = PackHeads(lessons.verifier.config, length)
        sources = lessons.held_out if held_out else lessons.sources
        return mixtures.draft_batches(
            [(source, 1) for source in sources], teach, pack, config.batch,
            seed=None if held_out else config.seed, num_epochs=1 if held_out else None,
            num_workers=0 if held_out else config.workers, dropped=lessons.dropped,
        )  # fmt: skip


def head_objective(config: Any, model: VisionLanguageModel, folder: Path) -> Objective:
    """A head learns to draft for the verifier in `folder`."""
    block = block_head(config, model)
    loss = make_head_loss(block, HeadLossSettings(**config.loss.to_dict()))
    taught = HeadLessons.prepare(config, block.head.config.taps)
    engine = taught.lessons.verifier.engine()
    taught.lessons.verifier.release(keep=engine.mesh)
    draft_ids = _draft_ids(taught.lessons, block.head.config, Path(config.run_dir))
    ids = None if draft_ids is None else jnp.asarray(draft_ids)
    shared = shared_weights(engine.params, ids)
    columns = tap_columns(taught.settings.taps, block.head.config)

    def complete(batch: HeadBatch | DraftBatch) -> HeadBatch:
        if taught.features is None:
            batch = with_features(engine.model, taught.settings, engine.params, batch, shared)
        return batch.with_taps(columns).replace(shared=shared)

    def to_batch(batch: Any) -> HeadBatch | DraftBatch:
        fields = batch._asdict()
        return draft_batch(fields) if taught.features is None else head_batch(fields)

    def export(params: Any, target: Path) -> None:
        head = HeadFolder(
            method=config.method, config=block.head.config, draft_ids=draft_ids,
            params=jax.tree.map(processes.fetch, params),
            router=block.router, route_query=block.route_query, route_every=block.route_every,
        )  # fmt: skip
        replace_folder(target, partial(write_head, head=head))
        taught.lessons.say_dropped()

    return Objective(
        init_params=block.init_params, rules=sharding_rules.HEAD_RULES, loss=loss,
        stream=lambda held_out: taught.stream(config, held_out),
        to_batch=to_batch,
        complete=complete,
        read_params=partial(_read_params, draft_ids), export=export, unit="tokens",
        unit_metric="agreement",
    )  # fmt: skip


def tap_columns(kept: tuple[int, ...], config: HeadConfig) -> tuple[slice, ...]:
    """Where the states that a head wants stand among those that are kept."""
    width = config.hidden_size
    places = [kept.index(tap) * width for tap in config.taps]
    return tuple(slice(place, place + width) for place in places)


def _read_params(draft_ids: np.ndarray | None, folder: str | Path, params: Any) -> Any:
    """The weights of an exported head in the place of fresh ones. Raises UserError."""
    source = Path(folder)
    found = read_head(source / "export") or read_head(source)
    if found is None:
        raise UserError(f"init_from: expected a run or a folder with a head, got {folder}")
    want, got = (jax.tree.map(jnp.shape, tree) for tree in (params, found.params))
    if want != got:
        raise UserError(f"init_from: {folder}: expected a head of the same shape, got another one")
    if draft_ids is not None and not np.array_equal(draft_ids, found.draft_ids):
        raise UserError(f"init_from: {folder}: expected the same draft vocabulary, got another one")
    return jax.tree.map(
        lambda new, old: jax.device_put(new, old.sharding).astype(old.dtype), found.params, params
    )


def _draft_ids(lessons: Lessons, config: HeadConfig, folder: Path) -> np.ndarray | None:
    """The most frequent tokens of the answers in the cache, ascending; None for all tokens.

    A run keeps those that it began with: its lm_head's rows are theirs.
    """
    if not config.draft_vocab:
        return None
    kept = folder / DRAFT_IDS
    if processes.from_main(kept.exists() and any((folder / CHECKPOINTS).glob("*"))):
        return np.load(kept)
    counts = np.zeros(config.vocab_size, np.int64)
    for key in sorted(lessons.cache.keys()):
        np.add.at(counts, lessons.cache[key].tokens, 1)
    # Ties to the lower id, so that the same answers give the same vocabulary.
    best = np.argsort(-counts, kind="stable")[: config.draft_vocab]
    ids = np.sort(best).astype(np.int32)
    if processes.is_main():
        np.save(kept, ids)
    return ids
