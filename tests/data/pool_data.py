"""Tiny made-up data sets in their original layouts, and what a pool must make of them."""

import json
from pathlib import Path
from typing import Any

import ml_collections
from PIL import Image

from configs.data import grpo_pool, kd_pool

LONG = " ".join(["why"] * 61)
LLAVA = (  # id, picture, question, answer
    ("bus", "coco/train2017/000000000001.jpg", "What are the colors of the bus?", "White, red."),
    ("cats", "coco/train2017/000000000002.jpg", "How many cats lie on it now?", "2"),
    ("short", "coco/train2017/000000000003.jpg", "What is this?", "A sofa."),
    ("yes", "coco/train2017/000000000003.jpg", "Is the bus in front red?", "Yes"),
    ("long", "coco/train2017/000000000003.jpg", LONG, "Because."),
    ("box", "coco/train2017/000000000003.jpg", "Where is the red bus here?",
     "[0.1, 0.25, 0.3, 1.0]"),
    ("text", None, "What do cats like to eat?", "Fish."),
    ("genome", "vg/VG_100K/7.jpg", "What is behind the red car?", "A tree."),
    ("leak", "coco/train2017/000000000009.jpg", "What is behind the red car?", "A tree."),
    ("broken", "coco/train2017/000000000010.jpg", "What is behind the red car?", "A tree."),
    ("thin", "coco/train2017/000000000011.jpg", "What is behind the red car?", "A tree."),
    *((f"more{n}", f"coco/train2017/{100 + n // 2:012d}.jpg",
       f"Describe thing {n} in full detail.", f"It is thing {n}.") for n in range(8)),
)  # fmt: skip
"""Of these `bus`, `cats` and the eight `more` stay in a filtered pool; the last two share four
pictures. In an unfiltered one also `short`, `yes` and `long`."""
KEPT = {"bus", "cats", *(f"more{n}" for n in range(8))}
UNFILTERED = KEPT | {"short", "yes", "long"}


def write_data(root: Path) -> Path:
    """All six data sets in `root`, with pictures of one colour each."""
    _llava(root / "llava")
    _json(root / "textvqa/TextVQA_0.5.1_train.json", {"data": [
        {"question": f"What word is on sign {n}?", "image_id": f"t{n}", "question_id": n,
         "answers": ["stop"] * 10} for n in range(3)]})  # fmt: skip
    _json(root / "textvqa/TextVQA_0.5.1_val.json", {"data": [
        {"question": "What is written there?", "image_id": "v0", "question_id": 50,
         "answers": ["go"] * 10}]})  # fmt: skip
    for n in range(3):
        picture(root / f"textvqa/train_images/t{n}.jpg", 60 + n)
    _json(root / "scienceqa/problems.json", {
        str(n): {"question": "Which of these is the largest one?", "choices": ["an ant", "a cow"],
                 "answer": 1, "hint": "", "image": "image.png" if n < 2 else None,
                 "task": "", "grade": "", "subject": "", "topic": "", "category": "", "skill": "",
                 "lecture": "", "solution": "", "split": "train"} for n in range(3)})  # fmt: skip
    for n in range(2):
        picture(root / f"scienceqa/images/train/{n}/image.png", 70 + n)
    for split, answers in (("val", {"answers": ["7"]}), ("test", {})):
        _json(root / f"docvqa/{split}_v1.0_withQT.json", {"data": [
            {"questionId": f"{split}{n}", "question": "What is the invoice number shown?",
             "image": f"documents/{split}{n}.png", "docId": n, **answers} for n in range(2)]},
        )  # fmt: skip
        for n in range(2):
            picture(root / f"docvqa/spdocvqa_images/{split}{n}.png", 80 + n)
    _tallyqa(root / "tallyqa")
    for part in ("human", "augmented"):
        _json(root / f"chartqa/test/test_{part}.json", [
            {"imgname": f"{part}.png", "query": query, "label": "5"}
            for query in ("What is the value of 2001?", "Is the color of it light green?")
        ])  # fmt: skip
        picture(root / f"chartqa/test/png/{part}.png", 90 + len(part))
    return root


def _llava(root: Path) -> None:
    _json(root / "llava_v1_5_mix665k.json", [
        {"id": name, **({"image": image} if image else {}), "conversations": [
            {"from": "human", "value": ("<image>\n" if image else "") + question},
            {"from": "gpt", "value": answer},
            {"from": "human", "value": "And what else is in it?"},
            {"from": "gpt", "value": "Nothing."},
        ]} for name, image, question, answer in LLAVA])  # fmt: skip
    for number, image in enumerate(sorted({row[1] for row in LLAVA if row[1]})):
        picture(root / image, number)
    (root / "coco/train2017/000000000010.jpg").write_bytes(b"<html>not found</html>")
    Image.new("RGB", (300, 1)).save(root / "coco/train2017/000000000011.jpg")


def _tallyqa(root: Path) -> None:
    def row(number: int, image: str) -> dict:
        return {"answer": number, "data_source": "imported_vqa", "image": image, "image_id": number,
                "question": f"How many birds sit on wire {number}?",
                "question_id": number}  # fmt: skip

    train = [row(0, "train2014/COCO_train2014_000000000021.jpg"),
             row(1, "train2014/COCO_train2014_000000000021.jpg"),
             row(2, "val2014/COCO_val2014_000000000022.jpg"),
             row(3, "VG_100K/23.jpg")]  # fmt: skip
    _json(root / "train.json", train)
    _json(root / "test.json", [row(9, "val2014/COCO_val2014_000000000009.jpg")])
    for number, name in enumerate(sorted({row["image"] for row in train})):
        picture(root / name, 50 + number)


def picture(path: Path, shade: int) -> None:
    """A small picture whose bytes depend on `shade` alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (shade, 40, 200 - shade)).save(path, format="PNG")


def _json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def small_config(pool: str, data: Path, out: Path, **changes: Any) -> ml_collections.ConfigDict:
    """The config of a pool that wants all it can have of this data."""
    config = {"kd": kd_pool, "grpo": grpo_pool}[pool].get_config()
    config.update({"root": str(data), "out": str(out), "workers": 1})
    config.evaluation.sets = ("tallyqa/test", "textvqa/val")
    for name, count in (("llava", 6), ("textvqa", 3), ("scienceqa", 2), ("docvqa", 2),
                        ("tallyqa", 2), ("chartqa", 4)):  # fmt: skip
        config.sources[name].count = count
    config.update(changes)
    return config


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its bytes."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*")) if file.is_file()
    }  # fmt: skip
