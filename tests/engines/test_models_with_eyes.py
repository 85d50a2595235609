"""The text part of a model with eyes is a target: its text is that of the whole model, which sees no image."""

import pytest
import torch
import transformers

from actors.engines.build import _engine, _How
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.flat_batch import FlatBatch, causal
from actors.engines.weights.loading import load_model
from tests.engines.families import EXPERTS, FAMILIES, RANKED
from tests.engines.tiny import COMMON, VOCAB, info, make_model

TIED = {"tie_word_embeddings": True}
TEXT = {key: value for key, value in COMMON.items() if key != "pad_token_id"} | TIED
EYES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
QWEN_EYES = {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64}
QWEN_TEXT = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
GLM_TEXT = TEXT | {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "mrope_section": [1, 1, 2],
    }
}
GLM_EYES = EYES | {"depth": 1, "num_heads": 2, "out_hidden_size": 64}
MODELS = {
    "Mistral3": {"text_config": {"model_type": "mistral", **TEXT, "head_dim": 16}, "vision_config": EYES},
    "Llava": {"text_config": {"model_type": "llama", **TEXT}, "vision_config": EYES},
    "SmolVLM": {"text_config": {"model_type": "llama", **TEXT}, "vision_config": EYES},
    "Gemma3": {"text_config": {**TEXT, "head_dim": 16, "sliding_window": 9}, "vision_config": EYES},
    "Qwen2_5_VL": {"text_config": QWEN_TEXT, "vision_config": QWEN_EYES},
    "Qwen3VL": {
        "text_config": {**QWEN_TEXT, "head_dim": 16},
        "vision_config": {**QWEN_EYES, "deepstack_visual_indexes": [0]},
    },
    "Gemma4Unified": {
        "text_config": {**TEXT, **FAMILIES["Gemma4Unified"]},
        "vision_config": {"mm_embed_dim": 32, "mm_posemb_size": 16, "output_proj_dims": 64},
    },
    "Glm4v": {"text_config": GLM_TEXT, "vision_config": GLM_EYES},
    "Glm4vMoe": {"text_config": GLM_TEXT | EXPERTS | RANKED | {"head_dim": 16}, "vision_config": GLM_EYES},
    "Mistral4": {"text_config": {"model_type": "mistral4", **TEXT, **FAMILIES["Mistral4"]}, "vision_config": EYES},
}

CLASSES = {"Mistral4": "Mistral3"}  # eyes are those of the family before


@pytest.mark.parametrize("name", MODELS)
def test_the_text_part_of_a_saved_model_computes_what_the_whole_does(name, tmp_path):
    torch.set_num_threads(1)
    config = getattr(transformers, f"{CLASSES.get(name, name)}Config")(**MODELS[name], **TIED)
    whole = make_model(lambda: transformers.AutoModelForImageTextToText.from_config(config))
    whole.save_pretrained(tmp_path)
    ids = [5 + 7 * i % 150 for i in range(30)]
    with torch.inference_mode():
        expected = whole(input_ids=torch.tensor([ids])).logits[0].float()
    engine = _engine(load_model(str(tmp_path), torch.device("cpu"), torch.float32), info(whole), 512, _How(exact=True))
    assert type(engine) is CompiledEngine
    batch = FlatBatch()
    batch.add(0, ids, list(range(30)), list(range(30)), causal(0, 30))
    logits = engine.forward(batch)
    assert logits.shape == (30, VOCAB)
    torch.testing.assert_close(logits, expected, atol=3e-5, rtol=3e-4)
