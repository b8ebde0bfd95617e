"""Towers as users write them: what counts, what is assumed, and what is refused with field and remedy."""

from __future__ import annotations

from typing import Any

import pytest
from tower_configs import llava, qwen

from builders import job_of, tiny_model
from cost_models.errors import InvalidInputError, NotModelledError
from cost_models.inputs.model import resolve_model

SIZES = {"tokens_per_image": 64, "images_per_sequence": 2.0}


def refused(model: dict[str, Any], framework: str = "fsdp", **training: Any) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidInputError) as caught:
        job_of(model, framework, **training)
    return [(each.pointer, each.message, each.hint) for each in caught.value.problems]


def test_images_of_any_size_have_rows_by_their_tokens() -> None:
    """Qwen merges 2 x 2 patches into a token: 64 tokens are 256 patches, which attend to each other."""
    (use,) = job_of(qwen(), "fsdp", towers={"vision": "frozen", **SIZES}).training.tower_uses
    assert (use.num_inputs, use.rows_per_input, use.tokens, use.trained) == (2.0, 256, 128.0, False)


def test_images_of_one_size_are_cut_into_tiles() -> None:
    """LLaVA's encoder takes 16 x 16 pixels in patches of 4: 16 tokens a tile, and a class row beside them."""
    towers = {"vision": "trained", "tokens_per_image": 50}
    (use,) = job_of(llava(), "fsdp", towers=towers).training.tower_uses
    assert (use.num_inputs, use.rows_per_input, use.tokens) == (3.0, 17, 50.0)  # 50 / 16 is nearest to 3 tiles


def test_defaults_of_towers_are_reported() -> None:
    assumed = job_of(llava(), "fsdp", towers={"vision": "frozen"}).training.assumed
    assert assumed["towers.images_per_sequence"] == 1.0
    assert assumed["towers.tokens_per_image"] == 16


def test_sounds_fill_whole_windows() -> None:
    """A window of 30 s has 60 frames here, of which Qwen2-Audio averages two into a token; 45 s need two windows."""
    model = {
        "model_type": "qwen2_audio",
        "text_config": {"model_type": "qwen2", **tiny_sizes()},
        "audio_config": {"encoder_layers": 2, "d_model": 64, "encoder_attention_heads": 4, "encoder_ffn_dim": 128, "max_source_positions": 60},
    }  # fmt: skip
    towers = {"audio": "trained", "audio_seconds_per_sequence": 45.0}
    (use,) = job_of({"hf_config": model}, "fsdp", towers=towers).training.tower_uses
    assert (use.num_inputs, use.rows_per_input, use.tokens) == (2.0, 60, 45.0)  # 30 tokens a window, one a second


def tiny_sizes() -> dict[str, int]:
    return {
        "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512,
        "vocab_size": 1000,
    }  # fmt: skip


BAD = {
    "a text model alone": (
        tiny_model(), {"vision": "frozen"}, "/training/towers/vision", "the model has no vision tower", "as model.hf_config"),
    "images without a tower": (
        qwen(), {"images_per_sequence": 3.0}, "/training/towers/images_per_sequence", "no vision tower runs", "Set towers.vision to 'frozen'"),
    "no size of images": (
        qwen(), {"vision": "frozen"}, "/training/towers/tokens_per_image", "takes images of any size", "28 x 28 pixels"),
    "more tokens than the sequence": (
        qwen(), {"vision": "frozen", "tokens_per_image": 1024, "images_per_sequence": 3.0}, "/training/towers/tokens_per_image",
        "3 images of 1024 tokens are 3072 tokens, more than seq_length 2048", "Use at most 2 images, or a seq_length of at least 3072."),
    "an image longer than the sequence": (
        qwen(), {"vision": "frozen", "tokens_per_image": 4096}, "/training/towers/tokens_per_image",
        "an image of 4096 tokens is longer than seq_length 2048", "Use images of at most 2048 tokens, or a seq_length of at least 4096."),
    "sounds without a tower": (
        qwen(), {"audio": "trained"}, "/training/towers/audio", "the model has no audio tower", "audio_config"),
    "a word that is no state": (
        qwen(), {"vision": "tuned"}, "/training/towers/vision", "'tuned'", "trained"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_towers_that_cannot_be(case: str) -> None:
    model, towers, pointer, message, hint = BAD[case]
    ((at, said, remedy),) = refused(model, towers=towers)
    assert at == pointer
    assert message in said
    assert hint in remedy


@pytest.mark.parametrize("framework", ["nanotron", "torchtitan", "megatron-deepspeed"])
def test_frameworks_without_towers_say_so(framework: str) -> None:
    ((at, message, hint),) = refused(qwen(), framework, towers={"vision": "frozen", **SIZES})
    assert at == "/training/towers"
    assert framework in message
    assert "deepspeed, fsdp, megatron" in hint


def test_a_tower_without_its_text_model_is_refused() -> None:
    with pytest.raises(InvalidInputError) as caught:
        resolve_model({"hf_config": {"model_type": "gemma3", "vision_config": {"hidden_size": 1152}}})
    (problem,) = caught.value.problems
    assert problem.pointer == "/model/hf_config/text_config"
    assert "no text model to plan" in problem.message
    with pytest.raises(InvalidInputError, match="config of a vision or audio tower"):
        resolve_model({"hf_config": {"model_type": "siglip_vision_model", "hidden_size": 1152}})


def test_a_tower_of_an_unknown_class_is_refused_only_where_it_is_asked_for() -> None:
    config = {"model_type": "aya_vision", "vision_config": {"model_type": "siglip_vision_model"},
              "text_config": {"model_type": "llama", **tiny_sizes()}}  # fmt: skip
    assert job_of({"hf_config": config}, "fsdp").model.warnings == ("vision-tower-ignored",)
    with pytest.raises(NotModelledError, match="aya_vision"):
        job_of({"hf_config": config}, "fsdp", towers={"vision": "frozen"})


def test_a_text_model_may_name_its_towers_itself() -> None:
    """A preset or a specification can say which towers stand in front of it."""
    tower = {"model_type": "llava", "vision_config": {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
             "intermediate_size": 128, "image_size": 16, "patch_size": 4}}  # fmt: skip
    (use,) = job_of(tiny_model(multimodal=tower), "fsdp", towers={"vision": "frozen"}).training.tower_uses
    assert use.rows_per_input == 17


def test_all_of_the_text_model_may_be_frozen_where_a_projector_is_trained() -> None:
    every = ["embedding", "head", "norms", "attention", "mlp"]
    job = job_of(llava(), "fsdp", towers={"vision": "frozen"}, frozen=every)
    assert set(job.training.frozen) == set(every)
    ((at, message, _),) = refused(llava(), towers={"vision": "frozen", "projector": "frozen"}, frozen=every)
    assert at == "/training/frozen"
    assert "every part" in message


def without_tower() -> dict[str, Any]:
    config = dict(qwen()["hf_config"])
    del config["vision_config"]
    return {"hf_config": config}


def with_tower(vision: Any) -> dict[str, Any]:
    return {"hf_config": {**qwen()["hf_config"], "vision_config": vision}}


def llama4(**vision: Any) -> dict[str, Any]:
    text = {"model_type": "llama4_text", "num_hidden_layers": 2}
    return {"hf_config": {"model_type": "llama4", "text_config": text, "vision_config": vision}}


def internvl(ratio: float) -> dict[str, Any]:
    text = {"model_type": "qwen2", **tiny_sizes()}
    return {
        "hf_config": {"model_type": "internvl", "text_config": text, "vision_config": {}, "downsample_ratio": ratio}
    }


CONFIG = "/model/hf_config/vision_config"
CONTRADICTIONS = {
    "a patch larger than the image": (
        llava(image_size=3), f"{CONFIG}/image_size", "image_size 3 holds no patch of 4 pixels"),
    "positions of an image without patches": (
        {"hf_config": {"model_type": "glm4v", "text_config": {"model_type": "glm4v_text"}, "vision_config": {"image_size": 7}}},
        f"{CONFIG}/image_size", "image_size 7 holds no patch of 14 pixels"),
    "a tower as wide as another model": (
        qwen(out_hidden_size=128), f"{CONFIG}/out_hidden_size",
        "out_hidden_size is 128, but the text model that reads the tower's vectors has hidden_size 256"),
    "a width left to a class that fits another model": (
        with_tower({"depth": 2}), f"{CONFIG}/out_hidden_size", "out_hidden_size is 3584, the default of its class, but"),
    "no part for the tower": (
        without_tower(), "/training/towers/vision", "the model has no vision tower"),
    "a wrapper whose type is no string": (
        {"hf_config": {**qwen()["hf_config"], "model_type": {"a": 1}}}, "/model/hf_config/model_type",
        "model_type is an object of 1 entries; it must be a string"),
    "a tower whose type is no string": (
        qwen(model_type=[1]), f"{CONFIG}/model_type", "model_type is a list of 1 entries; it must be a string"),
    "features of no layer": (
        {"hf_config": {**llava()["hf_config"], "vision_feature_layer": {"a": 1}}}, "/model/hf_config/vision_feature_layer",
        "it must be a whole number or a list of these"),
    "a list for the tower": (
        with_tower([]), CONFIG, "vision_config is a list of 0 entries; it must be an object"),
    "a ratio that shuffles nothing": (
        llama4(pixel_shuffle_ratio=0), f"{CONFIG}/pixel_shuffle_ratio", "a number above 0 and at most 1"),
    "more patches in a token than in an image": (
        internvl(1e-9), "/model/hf_config/downsample_ratio", "1000000000 x 1000000000 patches, more than"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_configs_whose_tower_cannot_be_built(case: str) -> None:
    model, pointer, message = CONTRADICTIONS[case]
    towers = {"vision": "frozen", "tokens_per_image": 64}
    ((at, said, remedy),) = refused(model, towers=towers)
    assert (at, message in said) == (pointer, True), said
    assert remedy
