"""Draft blocks for training: the geometry of decoding, many blocks in one forward pass.

B: pictures, P: stream-prefix tokens, L: packed text tokens, M: blocks, K: sampled continuations of
a block, g: draft length, k: routed tokens, R: bank rows, D: width, W: width of a visual row,
A: axes of a position, V: vocabulary.

    stream    [ <s> USER: v_g ][ question 1 ASSISTANT: y1 y2 y3 y4 y5 </s> | question 2 .. ]
    block     anchor y2 (the root):  [ r1 .. rk | y2 | y3 y4 y5 ]   predicts y3 y4 y5 </s>
              sees the stream's prefix, question 1 up to y2, and itself causally

This is one round of decoding (method.md 2 and 3) to the letter: the state at the anchor routes, the
routed tokens stand behind the committed text with their original positions, the root runs a second
time. A block of the selector `full` has no routed tokens and does not see its anchor in the
stream, which makes it ordinary cached decoding. tests/training/test_draft_blocks.py holds both
against the decoder.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from tiger_jax.models.interface import DeviceTiles, VisionLanguageModel
from tiger_jax.ops.kv_cache import Context
from tiger_jax.ops.rotary import on_axes
from tiger_jax.ops.sampling import NEVER
from tiger_jax.routing import router as routing
from tiger_jax.routing.bank import Stream, embed_stream, gather_rows
from tiger_jax.routing.router import RouterConfig
from tiger_jax.sharding.rules import ROUTER_RULES, ParamRule, constrain
from tiger_jax.training import block_layout
from tiger_jax.training.block_layout import TextRows
from tiger_jax.training.draft_batch import DraftBatch


@struct.dataclass
class Blocks:
    """Where drafts start, and what the text says there."""

    anchors: Any
    """int32 [B, M]: the root's place in the packed text; -1 = no block."""
    tokens: Any
    """int32 [B, M, g]: the tokens after the root."""
    lengths: Any
    """int32 [B, M]: how many of them belong to the response (end token included); 0 = no block."""


@struct.dataclass
class Opened:
    """Blocks before their first token: what every continuation of them shares."""

    context: Context
    visible: Bool[Array, "B M PL"]
    scores: Float[Array, "B M R"] | None
    """None for the selector `full`."""
    routed: routing.Routed | None
    embeddings: Float[Array, "B M k W"]
    """Routed tokens; k = 0 for `full`."""
    positions: Int[Array, "B M k *A"]
    valid: Bool[Array, "B M k"]
    roots: Int[Array, "B M"]
    root_positions: Int[Array, "B M"]


@dataclasses.dataclass(frozen=True)
class BlockDrafter:
    """A drafter in its training form."""

    model: VisionLanguageModel
    config: RouterConfig

    @property
    def rules(self) -> tuple[ParamRule, ...]:
        """Where its parameters live on a mesh."""
        return (*self.model.rules, *(ROUTER_RULES if self.config.routes else ()))

    def init_params(self, key: Key[Array, ""]) -> Any:
        """Random parameters, the router's under "router" if there is one."""
        params = self.model.init_params(key)
        if not self.config.routes:
            return params
        width = self.model.config.text.hidden_size
        router = routing.init_router(
            jax.random.fold_in(key, 1), width, self.config.looks, inner=self.config.width
        )
        return params | {"router": router}

    def unrolled(self) -> "BlockDrafter":
        """The drafter for passes without a gradient."""
        return dataclasses.replace(self, model=self.model.unrolled())

    def open(
        self, params: Any, stream: Stream, tiles: DeviceTiles, text: TextRows,
        anchors: Int[Array, "B M"], key: Key[Array, ""],
        scores: Float[Array, "B M R"] | None = None,
    ) -> Opened:  # fmt: skip
        """Run the stream and route every block.

        Args:
            key: of the selector `random`.
            scores: stand in the router's place.
        """
        table = self.model.encode_images(params, tiles)
        tokens = constrain(gather_rows(table, stream.bank), "batch", None, None)
        prefix = embed_stream(self.model, params, stream, tokens)
        words = constrain(self.model.embed(params, text.tokens), "batch", None, None)
        run = block_layout.run_packed(
            self.model, params, words, text.positions, text.segments, prefix, stream.lengths,
            stream.positions,
        )  # fmt: skip
        visible = block_layout.visible_before(
            anchors, text.segments, stream.lengths, prefix.shape[1], inclusive=self.config.routes
        )
        hidden = block_layout.at_anchors(run.hidden, anchors)
        scores, routed, embeddings, positions, valid = self._route(
            params, hidden, tokens, stream, key, scores
        )
        return Opened(
            context=run.context, visible=visible, scores=scores, routed=routed,
            embeddings=embeddings, positions=positions, valid=valid,
            roots=block_layout.at_anchors(text.tokens, anchors),
            root_positions=block_layout.at_anchors(text.positions, anchors),
        )  # fmt: skip

    def _route(self, params, hidden, tokens, stream: Stream, key, scores):
        count = hidden.shape[:2]
        if not self.config.routes:
            nothing = jnp.zeros((*count, 0), jnp.int32)
            return None, None, hidden[:, :, None][:, :, :0], nothing, nothing.astype(bool)
        router = params.get("router")  # none for selectors that learn nothing
        bank = routing.make_bank(router, tokens, stream.bank)
        if scores is None:
            keys = jax.random.split(key, count)
            scores = routing.route_scores(self.config, router, hidden, bank, keys)
        else:
            scores = jnp.where(bank.valid[:, None], scores, NEVER)
        routed = routing.choose(scores, self.config.routed_tokens, bank.sources)
        embeddings, positions = routing.take_routed(bank, routed, scores, self.config.gate)
        return scores, routed, embeddings, positions, routed.valid

    def logits(
        self, params: Any, opened: Opened, tokens: Int[Array, "B M g"]
    ) -> Float[Array, "B M g V"]:
        """Draft logits of given blocks: entry u is the law of token u, after the root and the
        tokens before u."""
        x, positions, valid = self.tail(params, opened, tokens[:, :, :-1])
        own = own_mask(valid, x.shape[2])
        hidden, _, _, _ = self.model.branch(
            params, x, positions, opened.context, opened.visible[:, :, None], own
        )
        return self.model.logits(params, hidden[:, :, -tokens.shape[2] :])

    def tail(
        self, params: Any, opened: Opened, drafts: Int[Array, "B M n"]
    ) -> tuple[Float[Array, "B M T W"], Int[Array, "B M T *A"], Bool[Array, "B M k"]]:
        """Embeddings and positions of [routed tokens | root | drafts]."""
        text = jnp.concatenate([opened.roots[..., None], drafts], axis=-1)
        words = self.model.embed(params, text.reshape(text.shape[0], -1))
        words = words.reshape(*text.shape, -1)
        places = opened.root_positions[..., None] + jnp.arange(text.shape[2])[None, None]
        if not self.config.routes:
            return words, places, opened.valid
        words, places = self.model.widen(words), on_axes(places, like=opened.positions)
        x = jnp.concatenate([opened.embeddings.astype(words.dtype), words], axis=2)
        return x, jnp.concatenate([opened.positions, places], axis=2), opened.valid


def decoder_rows(batch: DraftBatch, routed_tokens: int, samples: int = 1) -> int:
    """Rows that a training pass sends through the decoder: streams, texts, and the blocks of each
    prefix with their routed tokens."""
    size, count, length = batch.block_tokens.shape
    stream, text = batch.stream.tokens.shape[1], batch.tokens.shape[1]
    return size * (stream + text + count * samples * (routed_tokens + length))


def own_mask(valid: Bool[Array, "B M k"], length: int) -> Bool[Array, "B M T T"]:
    """Causal within a block; routed tokens that do not exist are seen by nobody."""
    count = valid.shape[2]
    real = jnp.pad(valid, ((0, 0), (0, 0), (0, length - count)), constant_values=True)
    return jnp.tril(jnp.ones((length, length), bool))[None, None] & real[:, :, None]


def repeat_blocks(opened: Opened, count: int) -> Opened:
    """Every block `count` times, one after the other: M becomes M * K. The stream stays single, and
    how the routes were found stays behind."""
    names = ("visible", "embeddings", "positions", "valid", "roots", "root_positions")
    repeated = {name: jnp.repeat(getattr(opened, name), count, axis=1) for name in names}
    return opened.replace(scores=None, routed=None, **repeated)
