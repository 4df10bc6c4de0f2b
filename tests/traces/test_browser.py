"""The page in a real browser: it fetches nothing, fits a phone, and shows its pictures."""

import html
import json
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from tests.traces.stories import BEST, LAST, SETTINGS, made_round, made_story, made_view
from tiger_jax.models.patch_boxes import Box
from tiger_jax.traces.page import render
from tiger_jax.traces.story import ACCEPTED, REJECTED, REPLACEMENT, Mark, Story
from tiger_jax.traces.views import View

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
WIDTH = 360

HARNESS = """<!DOCTYPE html><body style="margin:0">
<iframe style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe>
<pre id="found"></pre><script>
onload = () => setTimeout(() => {{
  const frame = document.querySelector("iframe"), inside = frame.contentDocument;
  const wide = [...inside.querySelectorAll("body *")].filter(one => {{
    const box = one.getBoundingClientRect();
    return !one.closest(".sr, .store, svg *") && box.right > {width} + 0.5;
  }});
  document.getElementById("found").textContent = JSON.stringify({{
    inner: frame.contentWindow.innerWidth,
    scroll: inside.documentElement.scrollWidth,
    wide: wide.map(one => one.outerHTML.slice(0, 80)),
    loads: frame.contentWindow.performance.getEntriesByType("resource").map(one => one.name),
    views: [...inside.querySelectorAll("svg.view")].map(one => {{
      const box = one.getBoundingClientRect();
      return [one.getAttribute("aria-label"), box.width, box.height];
    }}),
    small: [...inside.querySelectorAll("p, li, dd, dt, span, figcaption")].filter(
      one => parseFloat(inside.defaultView.getComputedStyle(one).fontSize) < 12 && one.textContent
    ).length,
  }});
}}, 300);
</script></body>"""


def chromium(folder, *arguments):
    """One headless run with a profile of its own; its output."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--hide-scrollbars", "--virtual-time-budget=3000", f"--user-data-dir={folder / 'profile'}",
        *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def measure(folder, page, width=WIDTH):
    """What the browser says of the page in a frame of `width` pixels."""
    file = folder / "harness.html"
    file.write_text(HARNESS.format(width=width, page=html.escape(page, quote=True)))
    dom = chromium(folder, "--dump-dom", file.as_uri())
    return json.loads(html.unescape(dom.split('<pre id="found">')[1].split("</pre>")[0]))


def hard_page():
    """Long words, wide pictures, a video, many marks, several requests."""
    long = "Donaudampfschifffahrtsgesellschaft" * 8
    frames = tuple(made_view(f"video 1, frame {n} (0.0 and 0.5 s)", 72, 128, 2) for n in (1, 2))
    marks = tuple(
        Mark(
            rank,
            9.0 - rank,
            1 - rank / 8,
            rank % 2,
            f"row {rank}, column 1",
            Box(0.0, 0.0, 8.0, 8.0),
        )
        for rank in range(1, 9)
    )
    tokens = [(long, ACCEPTED), (" b" * 80, REJECTED), ("\n", REPLACEMENT)]
    made = made_round(1, tokens, marks, committed=long, likeliest=(long, " b"), nodes=99)
    settings = SETTINGS | {"verifier": f"/a/{long}/verifier"}
    wide = (made_view("picture 1", 20, 400), made_view("picture 2", 400, 20))
    stories = [
        made_story(prompt=long, answer=long, views=frames, rounds=(made,), pooled=9),
        made_story(id=long, views=wide), Story(id="3", prompt="p", error=f"{long}: not there"),
    ]  # fmt: skip
    return render(stories, settings)


def test_a_phone_shows_all_of_it(tmp_path):
    """No part is wider than 360 pixels, no letter smaller than 12, each view is there with its
    text, and nothing was loaded but what stands in the page."""
    found = measure(tmp_path, hard_page())
    assert found["inner"] == WIDTH
    assert found["scroll"] == WIDTH
    assert found["wide"] == []
    assert found["small"] == 0
    assert all(name.startswith("data:") for name in found["loads"])
    assert len(found["views"]) >= 2 + 2 + 2 + 2
    for label, width, height in found["views"]:
        assert label
        assert 20 < width <= WIDTH
        assert height > 0


def test_the_harness_would_see_a_request_and_an_overflow(tmp_path):
    page = '<div style="width:500px">a</div><img src="http://127.0.0.1:9/picture.png" alt="a">'
    found = measure(tmp_path, page)
    assert found["loads"] == ["http://127.0.0.1:9/picture.png"]
    assert found["scroll"] > WIDTH
    assert found["wide"]


def test_pictures_and_outlines_are_really_drawn(tmp_path):
    """A magenta picture and its orange outline, counted on a screenshot."""
    magenta = np.full((60, 90, 3), (255, 0, 255), np.uint8)
    story = made_story(views=(View("picture 1", (60, 90), (magenta,)),),
                       rounds=(made_round(1, [(" a", ACCEPTED)], (BEST, LAST)),))  # fmt: skip
    file = tmp_path / "page.html"
    file.write_text(render([story], SETTINGS), encoding="utf-8")
    shot = tmp_path / "shot.png"
    chromium(tmp_path, "--window-size=900,1500", f"--screenshot={shot}", file.as_uri())
    with Image.open(shot) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)

    def count(colour):
        return int((np.abs(pixels - colour).max(axis=2) <= 3).sum())

    assert count((255, 0, 255)) > 2 * 100 * 60, "in the overview, and in the round"
    assert count((255, 140, 26)) > 200
