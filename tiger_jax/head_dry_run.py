"""A head's training step at the size of LLaVA-1.6, without weights: does it trace, what does it
hold, what does it cost.

B: examples, P: prefix tokens, L: packed text tokens, M: blocks, g: draft length, R: bank rows,
D: verifier width, F: width of its tapped states, V: vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape

from tiger_jax.dry_run.abstract_verifier import TARGETS, Verifier
from tiger_jax.dry_run.pictures import largest_picture
from tiger_jax.errors import UserError
from tiger_jax.head_methods import kept_taps
from tiger_jax.head_training import block_head
from tiger_jax.models.head import HeadConfig, Shared
from tiger_jax.routing.bank import BankLayout, Stream
from tiger_jax.training import optimizer, train_step
from tiger_jax.training.draft_batch import DraftBatch
from tiger_jax.training.head_batch import HeadBatch
from tiger_jax.training.head_step import HeadLossSettings, make_head_loss
from tiger_jax.training.train_state import TrainState

GIB = 2**30


def report(config: Any) -> str:
    """One paragraph of what a step of the run would take on one device.

    Args:
        config: resolved; `dry_run` names the verifier, max_length the text of an example.

    Raises:
        UserError: an unknown verifier.
    """
    if config.dry_run not in TARGETS:
        raise UserError(f"dry_run: expected one of {', '.join(TARGETS)}, got {config.dry_run!r}")
    model = Verifier.of(config.dry_run).model
    block = block_head(config, model)
    settings = optimizer.OptimizerSettings(config.learning_rate, config.steps, config.warmup)
    transform = optimizer.make_optimizer(settings)
    step = train_step.make_train_step(
        make_head_loss(block, HeadLossSettings(**config.loss.to_dict())), transform
    )
    params = jax.eval_shape(lambda: block.init_params(jax.random.key(0)))
    moments = jax.eval_shape(transform.init, params)
    state = TrainState(params, moments, Shape((), jnp.int32), Shape((2,), jnp.uint32))
    visual = largest_picture(model.config).visual
    batch = abstract_batch(config, block.head.config, visual)
    compiled = step.start.lower(state, batch).compile()
    memory = compiled.memory_analysis()
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    text = model.config.text
    kept = len(kept_taps(block.head.config.taps, text.num_layers)) * text.hidden_size
    rows = batch.prefix_features.shape[1] + batch.text_features.shape[1]
    features = 2 * (rows * kept + batch.visual.shape[1] * text.hidden_size)
    lines = (
        f"{config.method} for LLaVA-1.6 {config.dry_run}: {count / 1e6:.1f} M parameters, masters "
        f"and moments {3 * 4 * count / GIB:.2f} GiB",
        f"a micro-batch of {config.batch} x ({visual} visual + {config.max_length} text tokens), "
        f"{batch.draft.anchors.shape[1]} blocks of {config.draft_length}: temporaries "
        f"{memory.temp_size_in_bytes / GIB:.2f} GiB (as the CPU backend plans them), "
        f"{compiled.cost_analysis()['flops'] / 1e12:.2f} TFLOP",
        f"cached states of an example, for all methods, in half precision: {features / 1e6:.0f} MB",
    )
    return "\n".join(lines)


def abstract_batch(config: Any, head: HeadConfig, visual: int) -> HeadBatch:
    """Shapes of one micro-batch of the longest examples, with `visual` tokens of a picture."""
    size, length, steps = config.batch, config.max_length, config.draft_length
    prefix, blocks = visual + 64, -(-length // steps)
    width, kept = head.hidden_size, config.features.kept_rows
    laws, rows = config.teacher.kept_tokens, config.teacher.kept_rows

    def ints(*shape: int) -> Shape:
        return Shape((size, *shape), jnp.int32)

    def floats(*shape: int) -> Shape:
        return Shape((size, *shape), jnp.float32)

    bank = BankLayout(*[ints(visual)] * 5, floats(1))
    draft = DraftBatch(
        tiles=Shape((0, 1, 1, 3), jnp.float32), prefix_tokens=ints(prefix),
        prefix_image_rows=ints(prefix), prefix_lengths=ints(), prefix_positions=ints(prefix),
        stream=Stream(ints(prefix), ints(), *[ints(prefix)] * 3, bank),
        tokens=ints(length), segments=ints(length), positions=ints(length), anchors=ints(blocks),
        block_lengths=ints(blocks), block_tokens=ints(blocks, steps),
        block_logprobs=floats(blocks, steps), law_ids=ints(blocks, steps, laws),
        law_logprobs=floats(blocks, steps, laws), route_ids=ints(blocks, rows),
        route_weights=floats(blocks, rows),
    )  # fmt: skip
    tapped = len(head.taps) * width
    shared = Shared(
        Shape((head.vocab_size, width), jnp.bfloat16), Shape((width,), jnp.bfloat16),
        Shape((width, head.vocab_size), jnp.bfloat16),
        Shape((head.draft_vocab,), jnp.int32) if head.draft_vocab else None,
    )  # fmt: skip
    return HeadBatch(
        draft=draft, visual=floats(visual, width),
        prefix_features=Shape((size, prefix, tapped), jnp.float16),
        text_features=Shape((size, length, tapped), jnp.float16),
        look_ids=ints(blocks, steps, kept), look_weights=floats(blocks, steps, kept),
        shared=shared,
    )  # fmt: skip
