"""What convert/orbax_to_hf.py makes of a drafter is a drafter: for transformers and for torch."""

import pytest
import torch
import transformers

from tests.assets import TINY_LLAVA
from tests.weights.test_convert_scripts import script
from tiger_jax.export.torch_tiger import TorchTiger

DRAFTER = TINY_LLAVA / "tiger_drafter"


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Hugging Face -> Orbax -> Hugging Face, cut into shards."""
    folder = tmp_path_factory.mktemp("converted")
    orbax, out = str(folder / "orbax"), str(folder / "out")
    assert script("hf_to_orbax").main([str(DRAFTER), orbax]) == 0
    assert script("orbax_to_hf").main([orbax, out, "--max-shard-gb", "0.0006"]) == 0
    return folder / "out"


def test_transformers_opens_it_without_a_missing_or_unexpected_key(converted):
    assert len(list(converted.glob("model-*-of-*.safetensors"))) > 2
    assert (converted / "model.safetensors.index.json").exists()
    loaded, report = transformers.LlavaNextForConditionalGeneration.from_pretrained(
        converted, output_loading_info=True
    )
    assert {kind: names for kind, names in report.items() if names} == {}
    source = transformers.LlavaNextForConditionalGeneration.from_pretrained(DRAFTER)
    for name, value in source.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_the_torch_module_reads_its_router(converted):
    ours, source = TorchTiger.from_folder(converted), TorchTiger.from_folder(DRAFTER)
    assert ours.router.options == source.router.options
    for name, value in source.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
