"""SubRip files: times, mark-up, and damage named by its block."""

import pytest

from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.subtitles import Cue, read_subtitles, subtitle_text
from tiger_jax.errors import UserError


def written(tmp_path, text, newline="\n"):
    path = tmp_path / "v.srt"
    path.write_bytes(text.replace("\n", newline).encode("utf-8-sig"))
    return path


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_captions_lose_their_mark_up_and_keep_their_times(tmp_path, newline):
    text = (
        '1\n00:00:01,500 --> 00:00:02,000\n<font color="white" size=".72c">3 < 4,</font>\nhe  said'
        "\n\n2\n00:00:02.000 --> 00:00:03.000 X1:10\n\n\n3\n01:02:03,004 --> 01:02:04,000\nBye\n"
    )
    cues = read_subtitles(written(tmp_path, text, newline))
    assert cues == (Cue(1.5, 2.0, "3 < 4, he said"), Cue(3723.004, 3724.0, "Bye"))


def test_only_captions_on_screen_at_a_shown_frame():
    cues = (Cue(0.0, 2.0, "one"), Cue(2.0, 4.0, "two"), Cue(6.0, 7.0, "three"))
    assert subtitle_text(cues) == "one\ntwo\nthree"
    assert subtitle_text(cues, [0.0, 1.0]) == "one"
    assert subtitle_text(cues, [2.0]) == "two"
    assert subtitle_text(cues, [5.0, 7.0]) == ""
    assert subtitle_text(cues, [6.5, 0.5]) == "one\nthree"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\nHello\n", "block 1: expected HH:MM:SS,mmm --> HH:MM:SS,mmm, got 'Hello'"),
        ("7\n", "block 1: expected HH:MM:SS,mmm --> HH:MM:SS,mmm, got ''"),
        ("1\n00:00:02,000 --> 00:00:01,000\nx\n", "block 1: expected an end after the start"),
        ("1\n00:00:00,000 --> 00:00:01,000\nx\n\nrest\n", "block 2: expected HH:MM:SS"),
    ],
)
def test_damage_is_named(tmp_path, text, message):
    with pytest.raises(UserError, match=r"v\.srt: ") as caught:
        read_subtitles(written(tmp_path, text))
    assert message in str(caught.value)


def test_a_file_that_is_no_text_or_not_there(tmp_path):
    with pytest.raises(UserError, match="expected a subtitle file, found nothing there"):
        read_subtitles(tmp_path / "none.srt")
    (tmp_path / "v.srt").write_bytes(b"\xff\xfe1\x00")
    with pytest.raises(UserError, match="expected subtitles in UTF-8"):
        read_subtitles(tmp_path / "v.srt")


@needs_samples
def test_the_sample():
    cues = read_subtitles(SAMPLES / "video-mme" / "MADEUP_subtitle.srt")
    assert cues == (
        Cue(0.0, 2.5, "A large rabbit wakes up."),
        Cue(2.5, 5.0, "It looks at the meadow."),
    )
