"""From a head's folder to a drafter of a verifier that is loaded already."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from tiger_jax.decoding.drafters.head import HeadDrafter
from tiger_jax.decoding.drafters.medusa import MedusaDrafter
from tiger_jax.decoding.drafters.protocol import Drafter
from tiger_jax.decoding.drafters.tree import DynamicTree, StaticTree
from tiger_jax.errors import UserError
from tiger_jax.models.head import DraftHead, HeadConfig, shared_weights
from tiger_jax.models.interface import Params, VisionLanguageModel
from tiger_jax.routing.head_router import check_routing
from tiger_jax.routing.router import RouterConfig
from tiger_jax.sharding.rules import HEAD_RULES, place_params
from tiger_jax.weights.head_io import HeadFolder, read_head

CHAIN = "chain"


def parse_tree(text: str) -> DynamicTree | StaticTree | None:
    """The tree that "60,5,10" (nodes with the root, levels that are run, width), a JSON file of a
    static tree's rank paths ([[0], [1], [0, 0], ...]) or "chain" names.

    Raises:
        UserError: anything else, or a tree that cannot be.
    """
    if text == CHAIN:
        return None
    if text.endswith(".json"):
        return _static_tree(text)
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise UserError(
            f"draft tree: expected NODES,DEPTH,WIDTH, a .json file or {CHAIN}, got {text!r}"
        )
    return DynamicTree(*(int(part) for part in parts))


def _static_tree(file: str) -> StaticTree:
    try:
        paths = json.loads(Path(file).read_text(encoding="utf-8"))
        return StaticTree(tuple(tuple(int(rank) for rank in path) for path in paths))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{file}: expected a list of rank paths ({error})") from None


def fit_tree(
    tree: DynamicTree | StaticTree | None, head: HeadConfig
) -> DynamicTree | StaticTree | None:
    """The tree as a head can draft it: a dynamic one of Medusa is no deeper than it has blocks.

    Raises:
        UserError: a width beyond the vocabulary.
    """
    if not isinstance(tree, DynamicTree):
        return tree
    if tree.width > head.vocab_size:
        most = head.vocab_size
        raise UserError(f"draft tree: expected a width of at most {most}, got {tree.width}")
    if head.layout != "medusa":
        return tree
    depth = min(tree.depth, head.medusa_heads - 1)
    most = 1 + tree.width + depth * tree.width**2
    return DynamicTree(min(tree.nodes, most), depth, tree.width)


def load_head(
    folder: str | Path, model: VisionLanguageModel, params: Params, *, draft_length: int,
    confidence: float = 0.0, tree: DynamicTree | StaticTree | None = None,
    selector: str | None = None, routed_tokens: int | None = None, mesh: Mesh | None = None,
) -> tuple[str, Drafter, dict[str, Any]]:  # fmt: skip
    """(method, drafter, its parameters): the verifier's embeddings and lm_head among these.

    Args:
        model, params: the verifier, whose dtype the head takes on.
        draft_length: of a chain; a Medusa head drafts no more than it has blocks.
        selector, routed_tokens: in the place of the folder's own, for a head that routes.
        mesh: where the verifier is.

    Raises:
        UserError: an unreadable folder, a head of another verifier, or a routing that it has not.
    """
    found = read_head(folder)
    if found is None:
        raise UserError(f"{folder}: expected a head's folder, found no head_config.json there")
    check_fits(found.config, model, folder)
    head, tree = DraftHead(found.config, model.dtype), fit_tree(tree, found.config)
    weights = jax.tree.map(lambda x: jnp.asarray(x, model.dtype), found.params)
    weights = place_params(weights, HEAD_RULES, mesh)
    ids = None if found.draft_ids is None else jnp.asarray(found.draft_ids)
    whole = {"head": weights, "shared": shared_weights(params, ids)}
    router = choose_head_router(found, selector, routed_tokens)
    if found.config.layout == "medusa":
        draft_length = min(draft_length, found.config.medusa_heads)
        drafter: Drafter = MedusaDrafter(head, draft_length, tree, confidence)
    else:
        drafter = HeadDrafter(
            head, draft_length, tree, router, found.route_query, found.route_every, confidence
        )
    return found.method, drafter, whole


def check_fits(head: HeadConfig, model: VisionLanguageModel, folder: str | Path) -> None:
    """UserError unless the head was made for a verifier of this size."""
    text = model.config.text
    for name in ("hidden_size", "vocab_size", "num_layers"):
        want, got = getattr(text, name), getattr(head, name)
        if want != got:
            raise UserError(f"{folder}: {name}: expected {want} as in the verifier, got {got}")


def choose_head_router(
    found: HeadFolder, selector: str | None = None, routed_tokens: int | None = None
) -> RouterConfig | None:
    """The folder's router with what the user asked for instead; None for a head that does not
    route. Raises UserError for asking such a head."""
    asked = {"selector": selector, "routed_tokens": routed_tokens}
    asked = {name: value for name, value in asked.items() if value is not None}
    if found.router is None or not found.router.routes:
        if asked:
            raise UserError(f"{next(iter(asked))}: expected a head that routes, got {found.method}")
        return None
    if selector == "image_only" and found.router.selector != selector:
        raise UserError(
            f"selector: image_only needs training, this is a {found.router.selector} head"
        )
    router = dataclasses.replace(found.router, **asked)
    check_routing(found.config, router, found.route_query, found.route_every)
    return router
