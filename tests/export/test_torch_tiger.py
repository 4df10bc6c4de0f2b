"""The torch module against the decoder in JAX: the same routes and drafts, and it can learn on."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from PIL import Image

from tests.assets import TINY_LLAVA, TINY_QWEN3_VL
from tests.decoding.conftest import sampling_of
from tests.parity.pairs import make_pair, picture, prompt_text
from tests.parity.qwen3_vl_pairs import MERGE, make_qwen3_vl_pair, reference_inputs
from tests.parity.qwen3_vl_pairs import Image as Frame
from tests.parity.qwen3_vl_pairs import Video as Film
from tests.parity.qwen3_vl_pairs import make_prompt as noise_prompt
from tests.pictured import prompt_arrays
from tiger_jax.data.batches import PromptInputs, make_prompt
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import make_scene
from tiger_jax.decoding.drafters.protocol import Commit, RoundContext
from tiger_jax.decoding.drafters.routed import RoutedDrafter
from tiger_jax.errors import UserError
from tiger_jax.export import torch_tiger
from tiger_jax.export.torch_router import CONFIG_FILE, WEIGHTS_FILE
from tiger_jax.export.torch_tiger import TorchTiger, torch_inputs
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.frame_geometry import token_places
from tiger_jax.models.interface import VisionLanguageModel, build_model
from tiger_jax.ops.sampling import SamplingMode
from tiger_jax.routing.router import RouterConfig, init_router
from tiger_jax.weights.load import load_params
from tiger_jax.weights.router_io import read_router, write_router

DRAFTER = TINY_LLAVA / "tiger_drafter"
GATE = 5e-6
"""Largest relative L2 error in float32."""
G = 3
SCALE = 1.0
SEEN = []
OPTIONS = {
    "paper": RouterConfig(routed_tokens=5),
    "looks": RouterConfig(routed_tokens=5, pooled_tokens=4, looks=2, width=16),
    "blind query": RouterConfig(routed_tokens=6, query="text_only", gate="sigmoid"),
    "saliency": RouterConfig("image_only", 3, pooled_tokens=16, gate="straight_through"),
    "more than there are": RouterConfig(routed_tokens=200, pooled_tokens=9, looks=1),
}


@pytest.fixture(scope="module", autouse=True)
def _one_torch_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Recording(VisionLanguageModel):
    """Keeps the logits that a traced program asks for."""

    def logits(self, params, hidden):
        out = super().logits(params, hidden)
        SEEN.append(out)
        return out


def quick(program):
    """Compiled in half the time: each runs a few times."""
    options = {"xla_backend_optimization_level": 0}
    return jax.jit(program, static_argnames="drafter", compiler_options=options)


@quick
def prefill(drafter, params, arrays):
    return drafter.prefill(params, arrays, jnp.zeros((1, 1, 0)), arrays.tokens.shape[1] + 32)


@quick
def propose(drafter, params, state, context):
    SEEN.clear()
    _, scores = drafter._choose(params, state, context)
    tree, after = drafter.propose(params, state, context, SamplingMode.GREEDY)
    return tree.tokens[0, 1:], scores[0, 0], after, jnp.concatenate([x[0] for x in SEEN])


def two_rounds(folder, prompt, said):
    """(routed rows, scores, draft tokens, logits [G, V]) of two rounds of the decoder after the
    first token of `said`; the first round's drafts are said to be `said[1:-1]`, accepted, and its
    next token is the last."""
    config = read_config(folder)
    router, weights = read_router(folder, config.text.hidden_size)
    built = build_model(config)
    drafter = RoutedDrafter(Recording(config=config, module=built.module), G, router)
    params = load_params(folder, config, dtype=jnp.float32) | {"router": weights}
    arrays = prompt_arrays(config, [prompt], router.pooled_tokens, router.stream_query, width=256)
    state = prefill(drafter, params, arrays)
    rounds, length = [], len(prompt.tokens)
    everything = jnp.ones(config.text.vocab_size, bool)
    for root, place in ((said[0], length), (said[-1], length + len(said) - 1)):
        context = RoundContext(
            pending=jnp.asarray([root]), previous=jnp.asarray([0]), lengths=jnp.asarray([place]),
            rope_deltas=jnp.asarray([prompt.next_position - length]), active=jnp.asarray([True]),
            sampling=sampling_of(1), drawable=everything,
        )  # fmt: skip
        tokens, scores, state, logits = propose(drafter, params, state, context)
        routed = np.asarray(state.indices)[np.asarray(state.valid)]
        real = len(np.flatnonzero(prompt.image_ids >= 0))
        rounds.append((routed, np.asarray(scores)[:real], np.asarray(tokens), np.asarray(logits)))
        accepted = len(said) - 2
        path = np.zeros((1, G + 1), np.int32)
        path[0, : accepted + 1] = said[:-1]
        state = drafter.observe(
            params, state,
            Commit(
                path=jnp.asarray(path), accepted=jnp.asarray([accepted]), tokens=jnp.asarray(path),
                next_token=jnp.asarray([said[-1]]), lengths=context.lengths,
                taps=jnp.zeros((1, G + 1, 0)),
            ),
        )  # fmt: skip
    return rounds


def assert_parity(folder, inputs, prompt, said):
    assert inputs["input_ids"][0].tolist() == prompt.tokens.tolist()
    tiger = TorchTiger.from_folder(folder)
    texts = [said[:1], said]
    routes = []
    rounds = two_rounds(folder, prompt, said)
    for (routed, scores, tokens, logits), text in zip(rounds, texts, strict=True):
        with torch.no_grad():
            got = tiger(tiger.read(**inputs), text, tokens.tolist())
        assert got[0].tolist() == routed.tolist()
        assert relative_l2(got[1], scores) <= GATE
        assert relative_l2(got[2], logits) <= GATE
        assert got[2].argmax(dim=-1).tolist() == tokens.tolist()
        routes.append(routed.tolist())
    return routes


def relative_l2(got, wanted):
    assert tuple(got.shape) == wanted.shape
    error = np.linalg.norm(got.numpy() - wanted)
    return float(error / max(np.linalg.norm(wanted), 1e-30))


@pytest.mark.parametrize("index", [0, 1])
def test_the_embedded_drafter_on_scenes(index):
    """Its own processor on each side; the answer's text moves the route."""
    scene = make_scene(5, index, hard=index == 1)
    config = read_config(DRAFTER)
    ours = Processor.from_folder(DRAFTER, config)
    image = Image.fromarray(np.asarray(scene.image))
    question = scene.qa[-1]
    text = build_prompt(ours, question.question, 1)
    inputs = torch_inputs(DRAFTER, config, text, [image])
    said = ours.encode_piece(" " + question.answer)[:4]
    said = (said * 4)[:4]
    routes = assert_parity(DRAFTER, inputs, make_prompt(ours, config, text, [image]), said)
    assert len(routes[0]) == len(routes[1]) == 8


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return make_pair(folder), folder


@pytest.fixture
def with_router(pair, tmp_path):
    def make(config, source=pair[1]):
        folder = tmp_path / "drafter"
        shutil.copytree(source, folder)
        router = init_router(jax.random.key(3), 64, config.looks, inner=config.width)
        rng = np.random.default_rng(3)
        lively = jax.tree.map(
            lambda leaf: jnp.asarray(SCALE * leaf.shape[0] ** -0.5 * rng.normal(size=leaf.shape)),
            router,
        )
        write_router(folder, config, lively)
        return folder

    return make


CASES = {
    "two images": [(60, 100), (130, 45)],
    "no image": [],
    "no rows left": [(2, 500)],
    "odd": [(57, 113)],
}


@pytest.mark.parametrize(
    ("options", "case"),
    [
        ("paper", "two images"), ("looks", "odd"), ("looks", "no image"),
        ("blind query", "two images"), ("saliency", "no rows left"), ("more than there are", "odd"),
    ],
)  # fmt: skip
def test_random_drafters_with_other_options(pair, with_router, options, case):
    both, config = pair[0], OPTIONS[options]
    images = [picture(h, w, i) for i, (h, w) in enumerate(CASES[case])]
    text = prompt_text(len(images))
    inputs = both.reference_processor(text=text, images=images or None, return_tensors="pt")
    prompt = make_prompt(both.processor, both.config, text, images)
    routes = assert_parity(with_router(config), inputs, prompt, [17, 200, 31])
    if images and config.routed_tokens < 100 and config.selector == "tiger":
        assert routes[0] != routes[1]  # so that a stale route would show


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen")
    make_qwen3_vl_pair(folder)
    return folder


def as_inputs(prompt):
    """A prompt of frames of noise as the data package has it."""
    shown = np.flatnonzero(prompt.image_rows >= 0)
    places = np.full((len(prompt.tokens), 2), -1, np.float32)
    image_ids = np.full(len(prompt.tokens), -1, np.int32)
    if len(shown):
        grids = [(h // MERGE, w // MERGE) for h, w in prompt.grids]
        places[shown] = np.concatenate([token_places(*grid) for grid in grids])
        image_ids[shown] = np.repeat(np.arange(len(grids)), [h * w for h, w in grids])
    return PromptInputs(
        prompt.tokens, prompt.image_rows, prompt.frames, places, image_ids, prompt.positions,
        tile_rows=prompt.frames.patches.shape[1] // MERGE**2,
    )  # fmt: skip


FRAMED = {
    "two images": [3, Frame(4, 6), 2, Frame(6, 4), 2],
    "video between images": [1, Frame(2, 2), 2, Film(2, 4, 6), 1, Frame(8, 4), 2],
    "text": [9],
}


@pytest.mark.parametrize(
    ("options", "case"),
    [
        ("paper", "two images"), ("looks", "video between images"), ("looks", "text"),
        ("blind query", "video between images"), ("saliency", "two images"),
    ],
)  # fmt: skip
def test_random_drafters_of_the_other_family(with_router, qwen_folder, options, case):
    """Routed and pooled tokens carry their DeepStack and their three coordinates."""
    prompt, config = noise_prompt(FRAMED[case]), OPTIONS[options]
    folder = with_router(config, qwen_folder)
    routes = assert_parity(folder, reference_inputs([prompt]), as_inputs(prompt), [17, 200, 31])
    if case != "text" and config.selector == "tiger":
        assert routes[0] != routes[1]


def test_every_part_of_the_other_family_learns(with_router, qwen_folder):
    tiger = TorchTiger.from_folder(with_router(OPTIONS["looks"], qwen_folder))
    prompt = tiger.read(**reference_inputs([noise_prompt(FRAMED["video between images"])]))
    _, scores, logits = tiger(prompt, [17], [40, 41])
    (logits.square().mean() + scores.square().mean()).backward()
    names = [name for name, value in tiger.named_parameters()
             if value.grad is None or not value.grad.abs().max() > 0]  # fmt: skip
    assert names == ["router.saliency"]


@pytest.fixture
def tiger(with_router):
    return TorchTiger.from_folder(with_router(OPTIONS["looks"]))


@pytest.fixture
def inputs(pair):
    return pair[0].reference_processor(
        text=prompt_text(1), images=[picture(60, 100)], return_tensors="pt"
    )


@torch.no_grad()
def test_the_last_token_of_the_prompt_is_a_root_as_any_other(tiger, inputs):
    whole = tiger(tiger.read(**inputs), [], [40, 41])
    shorter = dict(inputs) | {"input_ids": inputs["input_ids"][:, :-1]}
    cut = tiger(tiger.read(**shorter), [int(inputs["input_ids"][0, -1])], [40, 41])
    for got, wanted in zip(cut, whole, strict=True):
        torch.testing.assert_close(got, wanted)


@torch.no_grad()
def test_what_the_drafts_see(tiger, inputs):
    """A draft does not see the ones behind it, and sees the routed tokens."""
    prompt = tiger.read(**inputs)
    indices, scores, logits = tiger(prompt, [17], [40, 41, 42])
    other = tiger.draft_logits(prompt, [17], [40, 90, 91], indices, scores)
    torch.testing.assert_close(other[:2], logits[:2])
    assert not torch.allclose(other[2], logits[2])
    blind = tiger.draft_logits(prompt, [17], [40], indices[:0], scores)
    assert not torch.allclose(blind[0], logits[0], atol=1e-3)


def test_every_part_learns(tiger, inputs):
    """Gradients of scores and drafts reach router, looks, decoder and tower; steps lower the
    loss."""
    optimizer = torch.optim.SGD(tiger.parameters(), 1e-4)
    losses = []
    for _ in range(4):
        _, scores, logits = tiger(tiger.read(**inputs), [17], [40, 41])
        target = torch.zeros_like(scores).index_fill(0, torch.tensor([3]), 1.0)
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([40, 41]))
        loss = loss + torch.nn.functional.cross_entropy(scores, target)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 1e-3
    unused = {
        name for name, value in tiger.named_parameters()
        if value.grad is None or not value.grad.abs().max() > 0
    }  # fmt: skip
    allowed = ("router.saliency", "vlm.model.vision_tower.")  # blocks behind the feature layer
    assert all(name.startswith(allowed) for name in unused), unused
    assert any("vision_tower" in name for name, _ in tiger.named_parameters() if name not in unused)


@pytest.mark.parametrize("gate", ["none", "sigmoid", "straight_through"])
def test_only_a_gate_lets_the_drafts_teach_the_router(with_router, inputs, gate):
    tiger = TorchTiger.from_folder(with_router(RouterConfig(routed_tokens=4, gate=gate)))
    _, _, logits = tiger(tiger.read(**inputs), [17], [40])
    torch.nn.functional.cross_entropy(logits, torch.tensor([40])).backward()
    grad = tiger.router.query.weight.grad
    assert (grad is not None and float(grad.abs().max()) > 0) == (gate != "none")


def test_what_is_saved_opens_here_in_transformers_and_in_jax(tmp_path, tiger, inputs):
    with torch.no_grad():
        for value in tiger.parameters():
            value.mul_(1.01)
        wanted = tiger(tiger.read(**inputs), [17], [40])
    tiger.save_folder(tmp_path / "further")
    _, report = transformers.LlavaNextForConditionalGeneration.from_pretrained(
        tmp_path / "further", output_loading_info=True
    )
    assert not any(report.values())
    again = TorchTiger.from_folder(tmp_path / "further")
    with torch.no_grad():
        for got, value in zip(again(again.read(**inputs), [17], [40]), wanted, strict=True):
            assert torch.equal(got, value)
    config = read_config(tmp_path / "further")
    params = load_params(tmp_path / "further", config)
    head = np.asarray(params["language_model"]["lm_head"]["kernel"]).T
    np.testing.assert_array_equal(head, tiger.vlm.lm_head.weight.detach().numpy())
    found, router = read_router(tmp_path / "further", 64)
    assert found == OPTIONS["looks"]
    out = np.asarray(router["look_1"]["out"]["kernel"]).T
    np.testing.assert_array_equal(out, tiger.router.look_1["out"].weight.detach().numpy())


def test_bfloat16_leaves_the_router_alone(with_router, inputs):
    tiger = TorchTiger.from_folder(with_router(OPTIONS["looks"]), dtype=torch.bfloat16)
    assert {value.dtype for value in tiger.router.parameters()} == {torch.float32}
    with torch.no_grad():
        _, scores, logits = tiger(tiger.read(**inputs), [17], [40])
    assert scores.dtype == logits.dtype == torch.float32
    assert torch.isfinite(logits).all()


def change_config(**fields):
    def change(folder):
        old = json.loads((folder / CONFIG_FILE).read_text())
        (folder / CONFIG_FILE).write_text(json.dumps(old | fields))

    return change


def change_weights(change):
    def apply(folder):
        tensors = safetensors.torch.load_file(folder / WEIGHTS_FILE)
        change(tensors)
        safetensors.torch.save_file(tensors, folder / WEIGHTS_FILE)

    return apply


FAULTS = [
    (change_config(selector="random"), "selector: expected one of tiger, image_only, got 'random'"),
    (change_config(format_version=2), "format_version: expected one of 1, got 2"),
    (change_config(route_every="step"), "expected only the fields .* got route_every"),
    (change_config(looks="2"), "looks: expected a whole number, got '2'"),
    (change_config(looks=3), "does not fit the drafter .*look_2"),
    (change_config(pooled_tokens=2), "pooled_tokens: expected one of 1, 4, 9, 16, got 2"),
    (change_weights(lambda t: t.pop("saliency")), "does not fit the drafter .*saliency"),
    (
        change_weights(lambda t: t.update({"query.weight": torch.zeros(64, 64)})),
        "does not fit the drafter .*size mismatch for query.weight",
    ),
    (lambda folder: (folder / WEIGHTS_FILE).unlink(), f"{WEIGHTS_FILE}: does not fit"),
    (lambda folder: (folder / CONFIG_FILE).unlink(), "a drafter that sees every visual token"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_faults_are_one_line(with_router, change, message):
    folder = with_router(OPTIONS["looks"])
    change(folder)
    with pytest.raises(UserError, match=message) as error:
        TorchTiger.from_folder(folder)
    assert "\n" not in str(error.value)


def test_pictures_that_do_not_fit_the_prompt(tiger, inputs):
    lacking = dict(inputs) | {"input_ids": inputs["input_ids"][:, 3:]}
    lacking["input_ids"] = lacking["input_ids"][:, lacking["input_ids"][0] != 300][:, :4]
    with pytest.raises(UserError, match="image tokens, got 0"):
        tiger.read(**lacking)


@pytest.mark.parametrize("drafter", [DRAFTER, TINY_QWEN3_VL / "tiger_drafter"])
@pytest.mark.parametrize(("prompt", "placeholders"), [("<image> <image>", 2), ("Text.", 0)])
def test_pictures_and_placeholders_are_counted(drafter, prompt, placeholders):
    text = build_prompt(Processor.from_folder(drafter), prompt)
    with pytest.raises(UserError, match=f"got {placeholders} placeholders and 1 images"):
        torch_inputs(drafter, read_config(drafter), text, [picture(112, 112)])


def test_the_command_prints_routed_tokens(capsys):
    line = ["--drafter", str(DRAFTER), "--image", str(TINY_LLAVA / "demo.png"), "--prompt", "What?"]
    assert torch_tiger.main(line) == 0
    out = capsys.readouterr().out
    assert out.startswith("136 visual tokens, routed: [")
    assert out.splitlines()[0].count(",") == 8  # one behind the count, seven between eight
    line[1] = str(Path("absent"))
    assert torch_tiger.main(line) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_it_needs_no_jax():
    """A PyTorch process that trains on must not start a second runtime."""
    code = (
        "import sys, tiger_jax.export.torch_tiger as t; t.TorchTiger.from_folder(sys.argv[1]);"
        "print([m for m in ('jax', 'flax', 'orbax') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(DRAFTER)], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
