"""What belongs together: requests of one batch, and the two models of a pair."""

import dataclasses

import pytest

from tests.pictured import framed_prompt, pictured_prompt
from tiger_jax.data.processor import Processor
from tiger_jax.data.records import Request
from tiger_jax.decoding.engine import Options
from tiger_jax.errors import UserError
from tiger_jax.pipeline import Prepared, batches, check_pair
from tiger_jax.testing.tiny import tiny_config, tiny_qwen3_vl_config


def prepared(*prompts):
    return [Prepared(Request(str(n), ""), prompt, Options()) for n, prompt in enumerate(prompts)]


def test_small_frames_are_not_padded_to_large_ones():
    """Frames of 4 and of 70 tokens, prompts of one length: a batch each."""
    config = tiny_qwen3_vl_config()
    small = framed_prompt(config, ((2, 2),), tuple(range(3, 70)))
    large = framed_prompt(config, ((7, 10),))
    assert small.tile_rows < large.tile_rows
    assert {len(small.tokens) // 64, len(large.tokens) // 64} == {1}
    assert list(batches(prepared(small, large, small), 4)) == [[0, 2], [1]]


def test_tiles_are_of_one_size():
    one, two = (pictured_prompt(tiny_config(), which) for which in ((0,), (0, 1)))
    assert list(batches(prepared(one, two, one), 2)) == [[0, 1], [2]]


class Words(dict):
    """A tokenizer of three words."""

    get_vocab = dict.copy


WORDS = Words(a=0, b=1, c=2)
QWEN, LLAVA = tiny_qwen3_vl_config(), tiny_config()


@pytest.mark.parametrize(
    ("verifier", "changes", "message"),
    [
        (QWEN, {"vision": dataclasses.replace(QWEN.vision, num_positions=4)},
         "drafter: expected position table rows 36 as in the verifier, got 4"),
        (QWEN, {"vision": dataclasses.replace(QWEN.vision, merge_size=1)}, "merge size 2"),
        (QWEN, {"video_token_id": 5}, "video id 95 as in the verifier, got 5"),
        (QWEN, {"eos_token_ids": (7,)}, "stop ids"),
        (LLAVA, {"pinpoints": ((28, 28),)}, "image_grid_pinpoints"),
        (LLAVA, {"image_token_id": 5}, "<image> id 95 as in the verifier, got 5"),
    ],
)  # fmt: skip
def test_a_pair_reads_the_same_prompts(verifier, changes, message):
    processor = Processor(verifier, WORDS, None)
    check_pair(verifier, dataclasses.replace(verifier), processor, processor)
    with pytest.raises(UserError) as caught:
        check_pair(verifier, dataclasses.replace(verifier, **changes), processor, processor)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pair_is_of_one_family():
    with pytest.raises(UserError, match="expected a Qwen3VL model as the verifier is, got LlavaN"):
        check_pair(QWEN, LLAVA, Processor(QWEN, WORDS, None), Processor(LLAVA, WORDS, None))


def test_a_pair_has_one_vocabulary():
    other = Processor(QWEN, Words(a=0, b=2, c=1), None)
    with pytest.raises(UserError, match="expected the verifier's vocabulary"):
        check_pair(QWEN, QWEN, Processor(QWEN, WORDS, None), other)
