"""Whether the head is the embedding: two flags in config.json, and what the file holds (B9)."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.weights.test_export import load_folder as load_tree
from tests.weights.test_load import edit, load_folder
from tests.weights.test_qwen3_vl_folders import EMBEDDING, HEAD, Model, opened, random_model
from tiger_jax.errors import UserError
from tiger_jax.testing.qwen3_vl_configs import tiny_config_json
from tiger_jax.weights import export

ABSENT = "absent"
FLAGS = [  # top level, text_config, tied?
    (True, True, True), (True, False, True), (True, ABSENT, True), (ABSENT, True, True),
    (None, True, True), (False, True, False), (False, False, False), (False, ABSENT, False),
    (ABSENT, False, False), (ABSENT, ABSENT, False),
]  # fmt: skip


def flag(folder, top, nested) -> None:
    """Writes both tie flags into config.json."""
    raw = json.loads((folder / "config.json").read_text())
    for values, wanted in ((raw, top), (raw["text_config"], nested)):
        values.pop("tie_word_embeddings", None)
        if wanted != ABSENT:
            values["tie_word_embeddings"] = wanted
    (folder / "config.json").write_text(json.dumps(raw))


def spelled(value) -> str:
    return value if value == ABSENT else json.dumps(value)


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model(tiny_config_json(layers=1, depth=3))


@pytest.fixture
def folder(tmp_path, model):
    """An untied model in one file."""
    model.save_pretrained(tmp_path / "source")
    return tmp_path / "source"


@pytest.mark.parametrize(("top", "nested", "tied"), FLAGS)
@pytest.mark.parametrize("stored", ["absent", "copy", "own"])
def test_tie_flags_and_the_stored_head(folder, top, nested, tied, stored):
    flag(folder, top, nested)
    if stored == "absent":
        edit(folder, lambda tensors: tensors.pop(HEAD))
    if stored == "copy":
        edit(folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))
    path = "language_model/lm_head/kernel"
    if tied and stored == "own":
        message = f"tie_word_embeddings is true, but {HEAD} differs from {EMBEDDING}"
        with pytest.raises(UserError, match=message):
            load_folder(folder)
    elif tied:
        assert path not in load_folder(folder)
    elif stored == "absent":  # copying the embedding would load, and answer nonsense (B9)
        with pytest.raises(UserError) as caught:
            load_folder(folder)
        line = str(caught.value)
        assert "\n" not in line
        assert f"1 missing: {HEAD} [400, 64]; " in line
        flags = f"{spelled(top)} at the top of config.json and {spelled(nested)} in its text_config"
        assert line.endswith(f"because tie_word_embeddings is {flags}")
    else:
        head = load_file(folder / "model.safetensors")[HEAD]
        np.testing.assert_array_equal(load_folder(folder)[path], head.numpy().T)


def test_transformers_agrees_on_the_flag_at_the_top(folder):
    """It reports an absent head as missing, unless the top level ties it: never the nested flag."""
    edit(folder, lambda tensors: tensors.pop(HEAD))
    for top, nested, tied in ((True, False, True), (False, True, False)):
        flag(folder, top, nested)
        _, info = Model.from_pretrained(folder, output_loading_info=True)
        assert info["missing_keys"] == (set() if tied else {HEAD})


def test_a_head_that_only_text_config_ties_opens_in_transformers(tmp_path, folder):
    """transformers ignores that flag and would make up a head: the export says it at the top."""
    flag(folder, ABSENT, True)
    edit(folder, lambda tensors: tensors.pop(HEAD))
    _, info = Model.from_pretrained(folder, output_loading_info=True)
    assert info["missing_keys"] == {HEAD}
    export.save_hf_folder(load_tree(folder), folder, tmp_path / "out")
    model = opened(tmp_path / "out")
    assert torch.equal(model.lm_head.weight, load_file(folder / "model.safetensors")[EMBEDDING])
    raw, written = (
        json.loads((place / "config.json").read_text()) for place in (folder, tmp_path / "out")
    )
    assert written == raw | {"tie_word_embeddings": True}


def test_a_base_file_of_an_untied_model_lacks_its_head(tmp_path, model):
    model.model.save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=r"\(layout base\).*1 missing: lm_head\.weight.*is false at"
    ):
        load_folder(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file) | {HEAD: model.lm_head.weight.detach()}
    save_file(tensors, file, {"format": "pt"})
    assert "language_model/lm_head/kernel" in load_folder(tmp_path)
