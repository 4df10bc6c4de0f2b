"""Views of a prompt and the tokens on them: several pictures, videos, and both in any order."""

import numpy as np
import pytest
from PIL import Image

from tests.assets import TINY_LLAVA, TINY_QWEN3_VL
from tiger_jax.data.batches import make_prompt
from tiger_jax.data.examples import load_pictures
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.records import Request
from tiger_jax.errors import UserError
from tiger_jax.models.patch_boxes import NEWLINE
from tiger_jax.traces.views import MOST_PIXELS, place, shown_in


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pictures of two sizes, one turned by its EXIF mark, and a clip of five pictures a second."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)

    def noise(*size):
        return Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8))

    noise(100, 300).save(folder / "wide.png")
    noise(250, 80).save(folder / "tall.png")
    turned = Image.Exif()
    turned[0x0112] = 6  # the picture lies on its side
    noise(60, 200).save(folder / "turned.jpg", exif=turned)
    noise(700, 1400).save(folder / "large.png")
    first, *rest = [noise(72, 96) for _ in range(5)]
    first.save(folder / "clip.gif", save_all=True, append_images=rest, duration=500)
    return folder


def shown(processor, files, prompt, images=(), videos=()):
    """(Shown, PromptInputs) of a request about some of the files."""
    request = Request(
        "1", prompt, tuple(str(files / name) for name in images),
        tuple(str(files / name) for name in videos), fps=2.0,
    )  # fmt: skip
    loaded = load_pictures(request, processor)
    text = build_prompt(processor, prompt, len(loaded.images), len(loaded.videos))
    inputs = make_prompt(processor, processor.config, text, loaded.images, videos=loaded.videos)
    return shown_in(processor, request, inputs), inputs


def check_places(found, inputs, tolerance):
    """Tokens lie on the views in the prompt's order, and each box has its patch's centre, which
    the processor has computed another way."""
    visual = inputs.image_ids >= 0
    assert [view for view, _ in found.patches] == inputs.image_ids[visual].tolist()
    for (view, patch), (y, x) in zip(found.patches, inputs.places[visual], strict=True):
        if patch.part == NEWLINE:
            assert patch.box is None
            assert x == 1
            continue
        height, width = found.views[view].size
        box = patch.box
        assert 0 <= box.top < box.bottom <= height + 1e-6
        assert 0 <= box.left < box.right <= width + 1e-6
        assert (box.top + box.bottom) / (2 * height) == pytest.approx(y, abs=tolerance)
        assert (box.left + box.right) / (2 * width) == pytest.approx(x, abs=tolerance)


@pytest.fixture(scope="module")
def llava():
    return Processor.from_folder(TINY_LLAVA / "verifier")


@pytest.fixture(scope="module")
def qwen():
    return Processor.from_folder(TINY_QWEN3_VL / "verifier")


def test_qwen_pictures_and_a_video_where_the_question_puts_them(qwen, files):
    found, inputs = shown(
        qwen, files, "Look at <image>, <video> and <image>.", ["wide.png", "tall.png"],
        ["clip.gif"],
    )  # fmt: skip
    assert [view.name for view in found.views] == [
        "picture 1", "video 1, frame 1 (0.0 and 0.5 s)", "video 1, frame 2 (1.0 and 1.5 s)",
        "video 1, frame 3 (2.0 s)", "picture 2",
    ]  # fmt: skip
    assert [view.size for view in found.views] == [(100, 300), *[(72, 96)] * 3, (250, 80)]
    check_places(found, inputs, 1e-5)


def test_llava_pictures_keep_their_crops(llava, files):
    """A picture that its EXIF mark turns has the size that it has upright."""
    found, inputs = shown(llava, files, "Compare.", ["wide.png", "turned.jpg"])
    assert [view.size for view in found.views] == [(100, 300), (200, 60)]
    # Half a patch of padding may be cut off a box, whose centre moves by a quarter.
    check_places(found, inputs, 0.25 / 8)
    assert sum(patch.part == NEWLINE for _, patch in found.patches) == 8 + 16


def test_llava_video_frames_and_pictures_pooled_to_a_budget(llava, files):
    """Five frames and a picture in 60 tokens: three squares a side, nine tokens each."""
    tight = llava.with_budget(60)
    found, inputs = shown(tight, files, "Look: <video> <image>", ["wide.png"], ["clip.gif"])
    assert len(found.views) == 6
    assert found.views[4].name == "video 1, frame 5 (2.0 s)"
    assert found.views[0].size == (72, 96), "not the size of the tile that it was fitted to"
    assert found.views[5].name == "picture 1"
    assert len(found.patches) == 6 * 9
    check_places(found, inputs, 1e-5)


def test_stills_are_shrunk_but_boxes_are_not(qwen, files):
    found, inputs = shown(qwen, files, "What is it?", ["large.png"])
    (view,) = found.views
    assert view.size == (700, 1400)
    assert view.stills[0].shape == (MOST_PIXELS // 2, MOST_PIXELS, 3)
    assert max(patch.box.right for _, patch in found.patches) == pytest.approx(1400)
    check_places(found, inputs, 1e-5)


def test_text_alone_shows_nothing(qwen, files):
    found, _ = shown(qwen, files, "Why?")
    assert (found.views, found.patches) == ((), ())


def test_a_picture_that_went_away_is_named(qwen, files, tmp_path):
    path = tmp_path / "here.png"
    path.write_bytes((files / "wide.png").read_bytes())
    _, inputs = shown(qwen, tmp_path, "What?", ["here.png"])
    path.unlink()
    with pytest.raises(UserError, match=r"here.png: expected an image file, found nothing there"):
        shown_in(qwen, Request("1", "What?", (str(path),)), inputs)


def test_other_views_than_the_prompt_has_are_refused(qwen, files):
    found, inputs = shown(qwen, files, "What?", ["wide.png"])
    with pytest.raises(ValueError, match="views: expected 1, got 2"):
        place([*found.views, *found.views], qwen.config, inputs)


def test_a_picture_that_is_another_one_now_is_a_persons_fault(llava, files, tmp_path):
    """It was answered as a wide one: a trace says so, and its neighbours are written."""
    path = tmp_path / "here.png"
    path.write_bytes((files / "wide.png").read_bytes())
    _, inputs = shown(llava, tmp_path, "What?", ["here.png"])
    path.write_bytes((files / "tall.png").read_bytes())
    with pytest.raises(UserError, match=r"picture 1: expected \d+ visual tokens as it was answer"):
        shown_in(llava, Request("1", "What?", (str(path),)), inputs)
