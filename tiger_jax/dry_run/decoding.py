"""python -m tiger_jax.decode --dry-run: whether a pair fits its cards, and what a round costs."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from tiger_jax.decoding.drafters.routed import RoutedDrafter
from tiger_jax.dry_run import report
from tiger_jax.dry_run.abstract_batches import Longest
from tiger_jax.dry_run.cards import find_card
from tiger_jax.dry_run.compiler import Compiler
from tiger_jax.dry_run.decoding_parts import Setting, plain_step, prefill_part, round_part
from tiger_jax.dry_run.measure import Measured
from tiger_jax.dry_run.published import abstract_weights, model_config
from tiger_jax.dry_run.training import measure_all
from tiger_jax.errors import UserError
from tiger_jax.models.interface import build_model
from tiger_jax.models.published import PAIRS
from tiger_jax.routing.router import RouterConfig, init_router
from tiger_jax.sharding.mesh import AXES
from tiger_jax.sharding.rules import ROUTER_RULES

MESH = {"data": 1, "fsdp": 1, "tensor": 8}
DTYPE = jnp.bfloat16


def report_decoding(
    pair: str = "llava_next", *, mesh: Mapping[str, int] | None = None, card: str = "a40",
    batch: int = 1, draft_length: int = 5, router: RouterConfig | None = None,
    max_new_tokens: int = 128, question: int = 64, layers: int = 0,
) -> tuple[str, bool]:  # fmt: skip
    """Compile prefill, plain step and speculative round from abstract parameters: (text, whether
    they fit).

    Args:
        mesh: sizes of its axes, none of them -1; their product is the number of cards.
        router: of the drafter; the paper's by default.
        question: text tokens of a prompt beside its picture.
        layers: > 0 makes both models that shallow.

    Raises:
        UserError: an unknown pair or card, or numbers that cannot be.
    """
    if pair not in PAIRS:
        raise UserError(f"--pair: expected one of {', '.join(PAIRS)}, got {pair!r}")
    for name, value in (("--batch", batch), ("--draft-length", draft_length)):
        if value < 1:
            raise UserError(f"{name}: expected at least 1, got {value}")
    sizes = dict(mesh or MESH)
    if any(size < 1 for size in sizes.values()):
        raise UserError(f"--mesh: expected the size of each axis, got {sizes}")
    found = find_card(card)
    compiler = Compiler.choose(found, int(np.prod(list(sizes.values()))))
    setting = make_setting(
        compiler, sizes, PAIRS[pair], batch, draft_length, router or RouterConfig(),
        max_new_tokens, question, layers,
    )  # fmt: skip
    parts = [prefill_part(setting), plain_step(setting), round_part(setting)]
    rows = measure_all(parts, compiler)
    said, fits = report.verdict(rows, found)
    text = (
        _heading(setting, compiler, PAIRS[pair]), report.tables(rows), report.legend(found),
        _prediction(setting, rows), said,
    )  # fmt: skip
    return "\n\n".join(text), fits


def make_setting(
    compiler: Compiler, sizes: Mapping[str, int], pair: tuple[str, str], batch: int,
    draft_length: int, router: RouterConfig, room: int, question: int, layers: int = 0,
) -> Setting:  # fmt: skip
    """A verifier with a routed drafter on one mesh."""
    mesh = compiler.mesh(sizes)
    verifier, small = (build_model(model_config(name, layers), DTYPE) for name in pair)
    width = small.config.text.hidden_size
    routing = jax.eval_shape(
        lambda: init_router(jax.random.key(0), width, router.looks, inner=router.width)
    )
    return Setting(
        verifier=verifier, verifier_params=abstract_weights(verifier, DTYPE, mesh), mesh=mesh,
        longest=Longest.of(small.config, router, question, room), batch=batch, room=room,
        drafter=RoutedDrafter(small, draft_length, router),
        drafter_params=abstract_weights(
            small, DTYPE, mesh, {"router": routing}, extra_rules=ROUTER_RULES
        ),
    )  # fmt: skip


def _heading(setting: Setting, compiler: Compiler, pair: tuple[str, str]) -> str:
    axes = ", ".join(f"{axis}={setting.mesh.shape[axis]}" for axis in AXES)
    rows = setting.state.cache.capacity
    return (
        f"{compiler.described}\n{pair[1]} drafts for {pair[0]} on {axes}; {setting.batch} requests "
        f"with a picture of {setting.longest.visual} visual tokens each, {setting.longest.prompt} "
        f"rows of prompt and {setting.room} new tokens: caches of {rows} rows"
    )


def _prediction(setting: Setting, rows: list[Measured]) -> str:
    _, plain, speculative = rows
    cost = speculative.seconds / plain.seconds
    most = setting.nodes
    return (
        f"prediction: a round takes {cost:.2f} plain steps (bytes: "
        f"{speculative.moved / plain.moved:.2f}) and emits 1 to {most} tokens; it pays from "
        f"{cost:.2f} tokens a round on"
    )
