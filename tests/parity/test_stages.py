"""Parity with transformers, stage by stage (models.md 10.1), in float32."""

import numpy as np
import pytest
from pairs import picture, prompt_text
from stages import first_failure, our_stages, reference_stages, stage_errors

CASES = {  # (height, width) of the pictures of one prompt
    "no image": [],
    "one image": [(60, 100)],
    "two images": [(60, 100), (130, 45)],
    "three images": [(56, 56), (45, 130), (61, 99)],
    "as large as a tile": [(56, 56)],
    "one pixel": [(1, 1)],
    "odd": [(57, 113)],
    "large": [(301, 299)],
    "wide": [(400, 900)],
    "tall": [(900, 400)],
    "three tiles wide": [(31, 400)],
    "three tiles tall": [(333, 40)],
    "no rows left": [(2, 500)],
    "no columns left": [(500, 2)],
}


def case_of(name: str, words: int = 6):
    sizes = CASES[name]
    return prompt_text(len(sizes), words), [picture(h, w, i) for i, (h, w) in enumerate(sizes)]


def assert_parity(got, wanted):
    errors = stage_errors(got, wanted)
    assert first_failure(errors) is None, errors
    for name in wanted:  # a single wrong element among many drowns in an L2 norm
        if wanted[name].size:
            worst = np.abs(got[name] - wanted[name]).max()
            assert worst <= 2e-5 * max(1.0, float(wanted[name].std())), (name, worst)
    assert np.array_equal(got["token ids"], wanted["token ids"])


@pytest.mark.parametrize("name", CASES)
def test_every_stage(pair, name):
    case = case_of(name)
    wanted = reference_stages(pair, *case)
    (got,) = our_stages(pair, [case])
    assert_parity(got, wanted)
    expected = ["token ids"]
    if CASES[name]:
        expected += ["image sizes", "tiles", "patch rows", "pre norm", "block 0", "block 1"]
        expected += ["selected", "projected", *(f"packed {i}" for i in range(len(CASES[name])))]
    assert list(got) == [*expected, "merged", "layer 0", "layer 1", "final norm", "logits"]


def test_a_batch_of_unlike_prompts(pair):
    """Other lengths and image counts side by side: each row as transformers runs it alone."""
    names = [("two images", 5), ("no image", 21), ("three tiles wide", 9), ("no rows left", 1)]
    cases = [case_of(name, words) for name, words in names]
    for got, case in zip(our_stages(pair, cases), cases, strict=True):
        assert_parity(got, reference_stages(pair, *case))
