"""The page: what it says, that it escapes, and that it holds everything it needs."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from tests.traces.stories import BEST, LAST, ROUNDS, SETTINGS, made_round, made_story, made_view
from tiger_jax.models.patch_boxes import Box
from tiger_jax.traces.page import data_uri, histogram, render, summarise, visible, write_page
from tiger_jax.traces.story import (
    ACCEPTED,
    MOST_COMMITTED,
    REJECTED,
    REPLACEMENT,
    Mark,
    Story,
    committed_text,
)

VOID = {"meta", "link", "image", "use", "rect", "br", "img"}


class Node:
    """An element with its children, texts among them."""

    def __init__(self, tag, attributes=()):
        self.tag, self.attributes, self.children = tag, dict(attributes), []

    def find(self, tag, **wanted):
        """All elements below of a tag whose attributes hold these words."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                fits = all(word in child.attributes.get(name.rstrip("_"), "").split()
                           for name, word in wanted.items())  # fmt: skip
                found += [child] if child.tag == tag and fits else []
                found += child.find(tag, **wanted)
        return found

    @property
    def text(self):
        return "".join(c if isinstance(c, str) else c.text for c in self.children)


class Tree(HTMLParser):
    """Builds the tree and refuses tags that are not closed in order."""

    def __init__(self, page):
        super().__init__()
        self.root = Node("root")
        self.open = [self.root]
        self.feed(page)
        assert self.open == [self.root], [node.tag for node in self.open]

    def handle_starttag(self, tag, attrs):
        node = Node(tag, attrs)
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Node(tag, attrs))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop().tag == tag

    def handle_data(self, data):
        self.open[-1].children.append(data)


def page_of(*stories, settings=SETTINGS):
    return Tree(render(stories or [made_story()], settings)).root


def test_marks_of_tokens_are_the_counted_lengths():
    """Each round has as many accepted marks as its A, by class, by sign and by word."""
    rounds = page_of().find("article")
    assert [int(r.attributes["data-accepted"]) for r in rounds] == [2, 3, 2]
    for found, made in zip(rounds, ROUNDS, strict=True):
        assert f"A = {made.accepted} of {made.drafted} drafted" in found.text
        for fate, sign, word in (
            ("accepted", "✓", "accepted: "), ("rejected", "✗", "rejected: "),
            ("replacement", "⇒", "replacement: "), ("bonus", "+", "bonus: "),
            ("unjudged", "·", "not judged: "),
        ):  # fmt: skip
            count = sum(token.fate == fate for token in made.tokens)
            marks = found.find("li", class_=fate)
            assert len(marks) == count
            for mark in marks:
                assert mark.find("span", class_="glyph")[0].text == sign
                assert mark.find("span", class_="sr")[0].text == word
                assert len(mark.find("del")) == (fate in ("rejected", "unjudged"))


def test_what_stands_behind_what():
    first = page_of().find("article")[0]
    texts = [li.text for li in first.find("ol", class_="tokens")[0].find("li")]
    assert texts == ["✓accepted:  a", "✓accepted:  cat", "✗rejected:  on", "⇒replacement:  in",
                     "✗rejected:  a"]  # fmt: skip
    assert "4.2 ms" in page_of().find("article")[1].text
    assert "compilation included" in first.text
    assert "so far" in first.find("p", class_="committed")[0].text


def test_nothing_of_a_prompt_is_markup():
    story = made_story(views=(made_view('<i>"&'),))
    page = render([story], SETTINGS)
    root = Tree(page).root
    for tag in ("b", "script", "i"):
        assert not [node for node in root.find(tag) if node.text in ("is", "cat", "")]
    assert 'What <b>is</b> & "this"?' in root.text
    assert "a <script>cat</script>" in root.text
    assert "a <drafter>" in root.text
    assert "<script" not in page


def test_half_a_character_stops_no_page(tmp_path):
    """A folder's name may hold one that UTF-8 cannot."""
    write_page(tmp_path / "t.html", [made_story()], SETTINGS | {"verifier": "a\udc80"})
    assert "a\\udc80" in (tmp_path / "t.html").read_text(encoding="utf-8")


def test_it_fetches_nothing():
    page = render([made_story()], SETTINGS)
    sources = re.findall(r'(?:src|href|action|data|poster)="([^"]*)"', page)
    assert all(source.startswith(("data:", "#")) for source in sources)
    assert not re.search(r"https?:|url\(|@import|//[a-z]", re.sub(r"base64,[^\"]*", "", page))
    used = set(re.findall(r'<use href="#([^"]*)"', page))
    assert used == set(re.findall(r'<image id="([^"]*)"', page))


def test_outlines_lie_where_the_boxes_are():
    """In the picture's own pixels; the better score is thicker and fuller, and drawn later within
    its kind."""
    first = page_of().find("article")[0]
    (view,) = first.find("svg", class_="view")
    assert view.attributes["viewbox"] == "0 0 90.0 60"
    label = "picture 1 in round 1: routed patches of rank 1, 2, 3"
    assert view.attributes["aria-label"] == label
    assert view.attributes["role"] == "img"
    assert view.find("title")[0].text == label
    outlines = view.find("rect", class_="routed")
    places = [tuple(float(one.attributes[n]) for n in ("x", "y", "width", "height"))
              for one in outlines]  # fmt: skip
    assert places == [(20, 10, 25, 15), (0, 30, 12, 10)]
    assert "coarse" not in outlines[0].attributes["class"]
    assert "coarse" in outlines[1].attributes["class"]
    styles = [one.attributes["style"] for one in outlines]
    assert styles == ["stroke-width:4.0px;stroke-opacity:1.0",
                      "stroke-width:1.5px;stroke-opacity:0.45"]  # fmt: skip
    assert [one.text for one in view.find("text", class_="rank")] == ["1", "2"]
    scores = [one.text for one in first.find("ol", class_="scores")[0].find("li")]
    assert scores == ["1 score 2.5 · crop, row 1, column 2",
                      "2 score 0.5 · base view, row 3, column 1",
                      "3 score 0.25 · newline of crop line 2"]  # fmt: skip


def labels_of(box):
    """The ranks on a picture of 60 x 90 where a crop and the base view are routed in one place."""
    marks = (Mark(1, 3.0, 1.0, 0, "crop, row 1, column 1", box),
             Mark(2, 2.0, 0.0, 0, "base view, row 1, column 1", box))  # fmt: skip
    story = made_story(rounds=(made_round(1, [(" a", ACCEPTED)], marks),))
    found = page_of(story).find("article")[0].find("text", class_="rank")
    return [(one.text, float(one.attributes["x"]), float(one.attributes["y"])) for one in found]


def test_ranks_are_readable_where_boxes_meet():
    """A large box has them in its middle, a small one on two corners, none of them cut off by the
    picture's edge: half a number is 0.6 * 0.045 * 90 = 2.43 pixels."""
    assert labels_of(Box(0.0, 0.0, 40.0, 50.0)) == [("1,2", 25, 20)]
    assert labels_of(Box(20.0, 30.0, 26.0, 38.0)) == [("1", 38, 26), ("2", 30, 20)]
    assert labels_of(Box(0.0, 84.0, 4.0, 90.0)) == [("1", 87.57, 4), ("2", 84, 2.43)]


def test_every_view_that_was_routed_from_is_shown():
    """Frames of a video hold both of their pictures, and outlines lie on each."""
    views = tuple(made_view(f"video 1, frame {n}", 40, 50, stills=2) for n in (1, 2, 3))
    marks = (Mark(1, 2.0, 1.0, 2, "row 1, column 1", Box(0.0, 0.0, 10.0, 10.0)),
             Mark(2, 1.0, 0.0, 0, "row 2, column 1", Box(10.0, 0.0, 20.0, 10.0)))  # fmt: skip
    story = made_story(views=views, rounds=(made_round(1, [(" a", ACCEPTED)], marks),))
    (article,) = page_of(story).find("article")
    shown = article.find("svg", class_="view")
    assert [one.attributes["aria-label"] for one in shown] == [
        "video 1, frame 1 in round 1: routed patches of rank 2",
        "video 1, frame 3 in round 1: routed patches of rank 1",
    ]
    assert shown[0].attributes["viewbox"] == "0 0 101.0 40"
    assert [float(one.attributes["x"]) for one in shown[0].find("use")] == [0, 51]
    assert [float(r.attributes["x"]) for r in shown[1].find("rect", class_="routed")] == [0, 51]
    assert "score 2 · video 1, frame 3, row 1, column 1" in article.text


def test_pooled_tokens_are_dotted_cells():
    (view,) = page_of(made_story(pooled=4)).find("article")[1].find("svg", class_="view")
    cells = view.find("rect", class_="pooled")
    assert [(float(c.attributes["x"]), float(c.attributes["y"])) for c in cells] == [
        (0, 0), (45, 0), (0, 30), (45, 30)
    ]  # fmt: skip
    assert "4 pooled tokens" in page_of(made_story(pooled=4)).text
    assert "pooled" not in page_of().find("main")[0].text


def test_the_lines_are_explained_where_they_are_drawn():
    """A page whose patches are all of the crops does not speak of dashes."""
    text = page_of().text
    assert "Solid orange: patches of the crops. Dashed blue: patches of the base view" in text
    text = page_of(made_story(rounds=(made_round(1, [(" a", ACCEPTED)], (BEST,)),))).text
    assert "Solid orange" in text
    assert "Dashed blue" not in text


def test_what_does_not_route_says_so():
    rounds = (made_round(1, [(" a", ACCEPTED)], None),)
    page = page_of(made_story(rounds=rounds))
    assert "This drafter does not route" in page.text
    assert not page.find("rect", class_="routed")
    page = page_of(made_story(rounds=rounds), settings=SETTINGS | {"k": "all"})
    assert "This drafter sees all visual tokens" in page.text
    page = page_of(made_story(views=(), rounds=rounds))
    assert "No picture was shown." in page.text
    assert not page.find("svg", class_="view")


def test_a_tree_shows_its_likeliest_path():
    tokens = [(" b", ACCEPTED), (" c", REJECTED), (" d", REPLACEMENT)]
    made = made_round(1, tokens, (BEST,), nodes=8, likeliest=(" x", " y"))
    (article,) = page_of(made_story(rounds=(made,))).find("article")
    assert "A = 1 of 2 drafted on this path, 8 in the tree" in article.text
    assert "likeliest path of the tree" in article.text
    assert " x  y" in article.text


def test_a_draft_that_was_another_one_says_so():
    made = made_round(1, [(" b", ACCEPTED)], (BEST,), agrees=False)
    assert "rounded a tie differently" in page_of(made_story(rounds=(made,))).text


def test_requests_have_sections_and_faults_their_line():
    stories = [made_story(id="a"), Story(id="<b>", prompt="p", error="no <such> file")]
    page = page_of(*stories)
    assert [node.text for node in page.find("h2")] == ["Request a", "Request <b>"]
    assert "error: no <such> file" in page.text
    keys = [node.attributes["id"] for node in page.find("image")]
    assert keys == ["p0-0-0"]


def test_a_run_in_which_nothing_was_decoded():
    page = page_of(Story(id="1", prompt="p", error="broken"))
    assert "No round was decoded." in page.text


def test_histogram_and_summary_by_hand():
    """A of 2, 3 and 2: 7 accepted in three rounds."""
    assert histogram([2, 3, 2, 0]) == [
        {"accepted": 0, "rounds": 1, "percent": 50.0}, {"accepted": 1, "rounds": 0, "percent": 0.0},
        {"accepted": 2, "rounds": 2, "percent": 100.0},
        {"accepted": 3, "rounds": 1, "percent": 50.0},
    ]  # fmt: skip
    text = summarise([made_story()])
    assert text == "10 tokens in 3 rounds: mean A 2.33, tau 3.33, median round 4.2 ms."
    bars = page_of().find("div", class_="bar")
    assert [bar.attributes["style"] for bar in bars] == [
        "width:0.0%", "width:0.0%", "width:100.0%", "width:50.0%"
    ]  # fmt: skip


def test_seeds_are_whole():
    facts = page_of(made_story(settings={"T": 0.5, "seed": 1234567})).text
    assert "T 0.5, seed 1234567." in facts


def test_long_answers_are_not_repeated_whole():
    """A page of n rounds would hold n^2 tokens."""

    def spell(ids):
        return "".join(f" {i}" for i in ids)

    assert committed_text(spell, range(MOST_COMMITTED))[:5] == "0 1 2"
    found = committed_text(spell, range(MOST_COMMITTED + 2))
    assert found.startswith("\u2026 2 3 ")
    assert found.endswith(f" {MOST_COMMITTED + 1}")


@pytest.mark.parametrize(
    ("text", "shown"), [(" a", " a"), (" ", "␣"), ("\n", "⏎"), ("a\nb", "a⏎b"), ("", "")]
)
def test_white_space_can_be_seen(text, shown):
    assert visible(text) == shown


@pytest.mark.parametrize(("size", "kind"), [((50, 60), "png"), ((300, 400), "jpeg")])
def test_pictures_in_the_page(size, kind):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    uri = data_uri(pixels)
    assert uri.startswith(f"data:image/{kind};base64,")
    assert uri == data_uri(pixels.copy())
    with Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))) as picture:
        assert picture.size == size[::-1]
        if kind == "png":
            assert (np.asarray(picture) == pixels).all()


def test_stated_faults_are_whole_stories():
    """The fixtures hold every fate, so that no test above is empty."""
    fates = {token.fate for made in ROUNDS for token in made.tokens}
    assert fates == {"accepted", "rejected", "replacement", "bonus", "unjudged"}
    assert LAST.score < BEST.score
