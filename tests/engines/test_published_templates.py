"""Chat templates as publishers write them: marks of thoughts, form of calls and end of a turn, found by rendering.

The templates themselves are not ours to copy. A folder of them, such as llama.cpp's models/templates, is compared with
the table where DUOACTOR_TEMPLATES names it; CI has templates of our own that are built alike.
"""

import os
import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from actors.engines.text.chat_template import ChatTemplate

TARGET = str(Path(__file__).parents[2] / "duoactor" / "pair" / "target")
FOLDER = os.environ.get("DUOACTOR_TEMPLATES", "")
# By name: the mark in front of a thought, the form of calls, and what ends a turn ("</s>": the tokenizer's own end).
PUBLISHED = {
    "Apertus-8B-Instruct": ("", "", ""),
    "Apriel-1.6-15b-Thinker-fixed": ("Here are my reasoning steps:", "", ""),
    "Bielik-11B-v3.0-Instruct": ("<think>", "hermes", "<|im_end|>"),
    "ByteDance-Seed-OSS": ("<seed:think>", "", "<seed:eos>"),
    "Cohere2MoE": ("<|START_THINKING|>", "", "<|END_TEXT|>"),
    "CohereForAI-c4ai-command-r-plus-tool_use": ("", "", ""),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("<|START_THINKING|>", "", "<|END_RESPONSE|>"),
    "GLM-4.6": ("<think>", "", ""),
    "GLM-4.7-Flash": ("<think>", "", ""),
    "GigaChat3-10B-A1.8B": ("", "", "<|message_sep|>"),
    "GigaChat3.1-10B-A1.8B": ("", "", "<|message_sep|>"),
    "HuggingFaceTB-SmolLM3-3B": ("<think>", "", "<|im_end|>"),
    "Kimi-K2-Instruct": ("", "", "<|im_end|>"),
    "Kimi-K2-Thinking": ("<think>", "", "<|im_end|>"),
    "Kimi-K3": ("<|open|>think<|sep|>", "", "<|close|>"),
    "LFM2-8B-A1B": ("", "", "<|im_end|>"),
    "LFM2.5-8B-A1B": ("<think>", "", "<|im_end|>"),
    "LFM2.5-Instruct": ("<think>", "", "<|im_end|>"),
    "MiMo-VL": ("", "hermes", "<|im_end|>"),
    "MiniMax-M1": ("", "", "<end_of_sentence>"),
    "MiniMax-M2": ("<think>", "", "[e~["),
    "MiniMax-M3": ("<mm:think>", "", "[e~["),
    "Mistral-Small-3.2-24B-Instruct-2506": ("", "mistral", "</s>"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("<think>", "hermes", "<|im_end|>"),
    "NVIDIA-Nemotron-Nano-v2": ("<think>", "", "<SPECIAL_12>"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("", "hermes", ""),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("", "hermes", ""),
    "Qwen-QwQ-32B": ("<think>", "hermes", "<|im_end|>"),
    "Qwen-Qwen2.5-7B-Instruct": ("", "hermes", "<|im_end|>"),
    "Qwen-Qwen3-0.6B": ("<think>", "hermes", "<|im_end|>"),
    "Qwen3-Coder": ("", "hermes", "<|im_end|>"),
    "Qwen3.5-4B": ("<think>", "hermes", "<|im_end|>"),
    "Reka-Edge": ("<think>", "hermes", "<sep>"),
    "Spark2.5": ("<think>", "", "<｜end▁of▁sentence｜>"),
    "StepFun3.5-Flash": ("<think>", "hermes", "<|im_end|>"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("<think>", "", "<｜end▁of▁sentence｜>"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("<think>", "", "<｜end▁of▁sentence｜>"),
    "deepseek-ai-DeepSeek-V3.1": ("<think>", "", "<｜end▁of▁sentence｜>"),
    "deepseek-ai-DeepSeek-V3.2": ("<think>", "", "<｜end▁of▁sentence｜>"),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ("<think>", "", "<｜end▁of▁sentence｜>"),
    "deepseek-ai-DeepSeek-V4": ("<think>", "", "<｜end▁of▁sentence｜>"),
    "fireworks-ai-llama-3-firefunction-v2": ("", "", ""),
    "google-gemma-2-2b-it": ("", "", "<end_of_turn>"),
    "google-gemma-4-31B-it-interleaved": ("<|channel>thought", "", "<turn|>"),
    "google-gemma-4-31B-it": ("<|channel>thought", "", "<turn|>"),
    "ibm-granite-granite-3.3-2B-Instruct": ("<think>", "", "<|end_of_text|>"),
    "ibm-granite-granite-4.0": ("", "hermes", "<|end_of_text|>"),
    "ibm-granite-granite-4.1": ("", "hermes", "<|end_of_text|>"),
    "inclusionai-ling-3.0-flash": ("<think>", "", "<|role_end|>"),
    "llama-cpp-deepseek-r1": ("<think>", "", "<｜end▁of▁sentence｜>"),
    "llama-cpp-rwkv-world": ("<think>", "", ""),
    "meetkai-functionary-medium-v3.1": ("", "", "<|eot_id|>"),
    "meetkai-functionary-medium-v3.2": ("", "", "<|eot_id|>"),
    "meta-llama-Llama-3.1-8B-Instruct": ("", "llama", "<|eot_id|>"),
    "meta-llama-Llama-3.2-3B-Instruct": ("", "llama", "<|eot_id|>"),
    "meta-llama-Llama-3.3-70B-Instruct": ("", "llama", "<|eot_id|>"),
    "microsoft-Phi-3.5-mini-instruct": ("", "", "<|end|>"),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("[THINK]", "mistral", "</s>"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("", "mistral", "</s>"),
    "moonshotai-Kimi-K2": ("", "", "<|im_end|>"),
    "muse-glimmer": ("to=self<|message|>", "", "<|eot|>"),
    "openai-gpt-oss-120b": ("<|channel|>analysis<|message|>", "", "<|return|>"),
    "openbmb-MiniCPM5-1B": ("<think>", "", "<|im_end|>"),
    "poolside-Laguna-S-2.1": ("<think>", "", "</assistant>"),
    "poolside-Laguna-XS-2.1": ("<think>", "", "</assistant>"),
    "poolside-Laguna-XS.2": ("<think>", "", "</assistant>"),
    "tencent-Hy3": ("<think:opensource>", "", ""),
    "unsloth-Apriel-1.5": ("", "", "<|end|>"),
    "unsloth-mistral-Devstral-Small-2507": ("", "mistral", "</s>"),
    "upstage-Solar-Open-100B": ("<|think|>", "", "<|end|>"),
}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TARGET)


def facts(tokenizer, template: str) -> tuple[str, str, str]:
    tokenizer.chat_template = template
    found = ChatTemplate(tokenizer)
    said = {"user": "probeuser", "assistant": "probeanswer"}
    ends = []
    for shape in (str, lambda text: [{"type": "text", "text": text}]):
        turns = [{"role": role, "content": shape(text)} for role, text in said.items()]
        try:
            text = tokenizer.apply_chat_template(turns, tokenize=False)
        except Exception:  # it takes other conversations
            continue
        if said["assistant"] in text:
            ends.append(text.rpartition(said["assistant"])[2].strip())
    mark = re.match(r"<[^<>]*>|\[[^\[\]]*\]|\S+", ends[0] if ends else "")
    return found.thinking.begin, found.tool_form, mark[0] if mark else ""


@pytest.mark.skipif(not FOLDER, reason="DUOACTOR_TEMPLATES names no folder of published templates")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_template_is_recognised_by_what_it_renders(tokenizer, name):
    text = (Path(FOLDER) / f"{name}.jinja").read_text(encoding="utf-8")
    assert facts(tokenizer, text) == PUBLISHED[name]


TURNS = """{% for m in messages %}<|{{ m.role }}|>
{% if m.role == 'assistant' %}THOUGHT{% endif %}{{ m.content }}STOP
{% endfor %}{% if add_generation_prompt %}PROMPT{% endif %}"""
SHOWN = "{% if m.reasoning_content %}BEGIN{{ m.reasoning_content }}CLOSE{% endif %}"
STRIPPED = """{% for m in messages %}<|{{ m.role }}|>
{% if loop.last %}{{ m.content }}{% else %}{{ m.content.split('</think>')[-1] }}{% endif %}<|end|>
{% endfor %}"""
TOLD = "{{ '<|system|>Write your plan between [THINK] and [/THINK].' }}" + TURNS


def alike(thought: str = "", end: str = "<|end|>", prompt: str = "<|assistant|>", base: str = TURNS) -> str:
    return base.replace("THOUGHT", thought).replace("STOP", end).replace("PROMPT", prompt)


def shown(begin: str, close: str) -> str:
    return SHOWN.replace("BEGIN", begin).replace("CLOSE", close)


BUILT = {
    "Phi, whose turns end by the mark that closes the thoughts of gpt-oss": (alike(), ""),
    "gpt-oss": (
        alike(
            shown("<|channel|>analysis<|message|>", "<|end|><|start|>assistant") + "<|channel|>final<|message|>",
            "<|return|>",
            "<|start|>assistant",
        ),
        "<|channel|>analysis<|message|>",
    ),
    "gpt-oss' marks in the wrong order": (
        alike(shown("<|end|>", "<|channel|>analysis<|message|>") + "<|start|>assistant<|channel|>final<|message|>"),
        "",
    ),
    "Solar, with a mark that gpt-oss has too": (
        alike(shown("<|think|>", "<|end|><|begin|>assistant") + "<|content|>"),
        "<|think|>",
    ),
    "Kimi K3": (
        alike(shown("<|open|>think<|sep|>", "<|close|>think<|sep|>") + "<|open|>response<|sep|>"),
        "<|open|>think<|sep|>",
    ),
    "Cohere": (
        alike(shown("<|START_THINKING|>", "<|END_THINKING|>") + "<|START_TEXT|>", "<|END_TEXT|>"),
        "<|START_THINKING|>",
    ),
    "tags of any name around a thought": (alike(shown("<x:any>", "</x:any>")), "<x:any>"),
    "a prompt that begins a thought": (alike(prompt="<|assistant|><think>\n"), "<think>"),
    "a prompt with an empty thought": (alike(prompt="<|assistant|><mm:think>\n\n</mm:think>"), "<mm:think>"),
    "thoughts that are taken out of earlier turns": (STRIPPED, "<think>"),
    "words to the model": (alike(base=TOLD), "[THINK]"),
    "reasoning steps": (alike(prompt="<|assistant|>Here are my reasoning steps:\n"), "Here are my reasoning steps:"),
}


@pytest.mark.parametrize("kind", BUILT)
def test_marks_of_thoughts_are_those_that_stand_in_order_in_a_rendered_conversation(tokenizer, kind):
    template, begin = BUILT[kind]
    assert facts(tokenizer, template)[0] == begin


CALLS = """{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}
CALL{% endfor %}{% endfor %}"""
NAME, OBJECT = "{{ c.function.name }}", "{{ c.function.arguments | tojson }}"


@pytest.mark.parametrize(
    ("call", "form"),
    [
        (f'<tool_call>{{"name": "{NAME}", "arguments": {OBJECT}}}</tool_call>', "hermes"),
        (f"<tool_call>{NAME}<arg_key>x</arg_key>{OBJECT}</tool_call>", ""),
        (f'<|START_ACTION|>[{{"tool_name": "{NAME}", "parameters": {OBJECT}}}]<|END_ACTION|>', ""),
        (f'{{"name": "{NAME}", "parameters": {OBJECT}}}', "llama"),
    ],
)
def test_a_form_of_calls_is_more_than_one_word_of_it(tokenizer, call, form):
    assert facts(tokenizer, CALLS.replace("CALL", call))[1] == form
