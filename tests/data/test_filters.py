"""The prompt filter and its tags on questions counted by hand."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiger_jax.data.examples import Example
from tiger_jax.data.filters import FORMAT_SUFFIXES, PromptFilter
from tiger_jax.data.json_lines import RecordError
from tiger_jax.errors import UserError

SHORT_ANSWER = "\nAnswer the question using a single word or phrase."
DEFAULT = PromptFilter()


def example(prompt: str, source: str = "own", images=("x.png",)) -> Example:
    return Example(prompt, prompt, images, source)


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("What is this?", "too_short"),  # 3 words
        ("What is this?" + SHORT_ANSWER, "too_short"),  # 13 with the suffix
        ("<image>\nWhat is this thing?", "too_short"),  # 4; the placeholder is no word
        ("What is this thing called?", None),  # 5
        (" ".join(["why"] * 60), None),
        (" ".join(["why"] * 61), "too_long"),
        ("Is the color of 15% segment light green?", "yes_no"),  # 8, a ChartQA question
        ("Is this a cat or a dog?", None),  # a choice
        ("Is this a cat, or maybe a dog?", None),
        ("Is this a cat on the orange sofa?", "yes_no"),  # no word "or"
        ("IS there any cat here?", "yes_no"),
        ("Is it true that cats like this red sofa?", "yes_no"),  # 9
        ("Is it true that cats like this big red sofa?", None),  # 10
        ("Is there any cat?", "too_short"),  # 4: counted once, under the first reason
        ("What is the sofa's color, is it red?", None),  # opens with no verb
        ("Isn't this a very nice sofa?", None),  # not in the list of openers
        ("Are there cats on it?" + SHORT_ANSWER, "yes_no"),  # 5 words, 15 with the suffix
        ("what is\nReference OCR token: a, b, c, d, e, f\n" + SHORT_ANSWER, "too_short"),
        ("what is it?\nReference OCR token: \nAnswer the question", None),  # 6
        ("Provide a one-sentence caption for the provided image.", None),  # the question itself
    ],
)
def test_which_prompts_stay(prompt, reason):
    assert DEFAULT.reason_to_drop(example(prompt)) == reason


def test_a_video_is_no_text_and_its_mark_no_word():
    video = Example("1", "<video> What does it do there?", (), "s", videos=("a.mp4",))
    assert DEFAULT.reason_to_drop(video) is None
    asked = PromptFilter(min_words=6)  # five words and the mark
    assert asked.reason_to_drop(video) == "too_short"


def test_text_only_records():
    prompt = example("What do cats like to eat?", images=())
    assert DEFAULT.reason_to_drop(prompt) == "text_only"
    assert PromptFilter(drop_text_only=False).reason_to_drop(prompt) is None


def test_each_open_point_is_a_setting():
    short = example("What is this?" + SHORT_ANSWER)
    assert PromptFilter(count_words_of="prompt").reason_to_drop(short) is None
    assert PromptFilter(min_words=3).reason_to_drop(short) is None
    yes_no = example("Is the color of 15% segment light green?")
    assert PromptFilter(drop_yes_no=False).reason_to_drop(yes_no) is None
    assert PromptFilter(yes_no_below=8).reason_to_drop(yes_no) is None
    assert PromptFilter(yes_no_openers=("are",)).reason_to_drop(yes_no) is None
    assert PromptFilter(alternative_words=("segment",)).reason_to_drop(yes_no) is None
    assert json.loads(json.dumps(dataclasses.asdict(DEFAULT)))["min_words"] == 5


@pytest.mark.parametrize("wrong", [{"min_words": 9, "max_words": 8}, {"count_words_of": "all"}])
def test_impossible_settings(wrong):
    with pytest.raises(UserError, match="prompt filter"):
        PromptFilter(**wrong)


@pytest.mark.parametrize(
    ("prompt", "source", "tag"),
    [
        ("How many words can you read?", "own", "count"),  # before ocr
        ("What is the number of stars?", "own", "count"),
        ("What number of stars? Is this country hot?", "own", "count"),
        ("In which country is this place?", "own", "visual_qa"),  # no word "count"
        ("Which cars can be seen?", "TallyQA/train", "count"),
        ("What does the sign say?", "own", "ocr"),
        ("What is this thing called?" + SHORT_ANSWER, "own", "visual_qa"),  # "word" is the suffix's
        ("What is this thing called?", "textvqa", "ocr"),
        ("What is this thing called?", "DocVQA", "ocr"),
        ("Why is the sign there?", "own", "ocr"),  # before reasoning
        ("Why is the boy so sad?", "own", "reasoning"),
        ("Which of them is the largest?", "ChartQA", "reasoning"),
        ("Please summarize what you see here.", "own", "description"),
        ("Please provide a detailed description of it.", "own", "description"),
        ("What color is the big sofa?", "own", "visual_qa"),
    ],
)
def test_tags(prompt, source, tag):
    assert DEFAULT.tag(example(prompt, source)) == tag


def test_apply_counts_everything_once():
    kept, report = DEFAULT.apply(
        [
            example("How many cats are there?", "a"),
            example("What is this?", "a"),
            RecordError(3, "not valid JSON"),
            example("Is there a cat in here?", "b"),
            example("What does the sign say?", "b"),
            example("Read what is written there.", "b"),
        ]
    )
    assert [item.tag for item in kept] == ["count", "ocr", "ocr"]
    assert kept[0].id == "How many cats are there?"
    assert (report.kept, report.dropped) == (3, 3)
    assert report.as_dict() == {
        "outcomes": {"kept": 3, "too_short": 1, "unreadable": 1, "yes_no": 1},
        "sources": {"a": {"kept": 1, "too_short": 1}, "b": {"yes_no": 1, "kept": 2}},
        "tags": {"count": 1, "ocr": 2},
    }
    assert report.lines() == [
        "all: kept 3 of 6, too_short 1, unreadable 1, yes_no 1",
        "a: kept 1 of 2, too_short 1",
        "b: kept 2 of 3, yes_no 1",
        "tags: ocr 2, count 1",
    ]


def test_nothing_to_filter():
    kept, report = DEFAULT.apply([])
    assert kept == []
    assert report.lines() == ["all: kept 0 of 0"]


@given(st.lists(st.sampled_from(["is", "cat", "or", "<image>", "\n", *FORMAT_SUFFIXES])))
def test_question_is_part_of_the_prompt_and_found_once(parts):
    prompt = " ".join(parts)
    question = DEFAULT.question(prompt)
    assert DEFAULT.question(question) == question
    assert "<image>" not in question
    assert bool(question) == bool(prompt.replace("<image>", "").strip())
