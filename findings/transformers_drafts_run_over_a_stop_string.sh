#!/usr/bin/env bash
# transformers 5.24.0 (tokenizers 0.23.3): with drafts by prompt lookup, `generate` runs over a stop string that ends
# inside of what a round accepts, and says nothing. It looks at the last token of each round alone. End-of-text tokens in
# the same place are noticed. With an assistant model the same call is an error that asks for the tokenizer which it got.
# The model counts through the alphabet, so that drafts are right and no text depends on rounding.
#
# Output seen:
#   stop at e: bcde, with lookup: bcdefghijklmnopqrstu
#   end of text at e: bcde, with lookup: bcde
#   stop at e, with an assistant: ValueError: ... you must pass the model's tokenizer to the `tokenizer` argument ...
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet transformers==5.24.0 tokenizers==0.23.3 torch==2.13.0
cat >"$folder/ask.py" <<'PYTHON'
import string

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

letters = string.ascii_lowercase
words = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(letters)} | {"?": 26}, unk_token="?"))
words.pre_tokenizer, words.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", pad_token="?")

sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=27, bos_token_id=None, eos_token_id=26, pad_token_id=26, **sizes)).eval()
with torch.no_grad():  # the one layer adds nothing, and the head answers each letter with the next one
    for tensor in model.parameters():
        tensor.zero_()
    model.model.norm.weight.fill_(1)
    model.model.embed_tokens.weight.copy_(torch.eye(32)[:27])
    for i in range(26):
        model.lm_head.weight[(i + 1) % 26, i] = 5

prompt = tokenizer(letters + "a", return_tensors="pt")
by_text, by_token = {"stop_strings": ["e"], "tokenizer": tokenizer}, {"eos_token_id": 4}


def answer(**more):
    ids = model.generate(**prompt, max_new_tokens=20, do_sample=False, **more)
    return tokenizer.decode(ids[0, prompt.input_ids.shape[1] :])


print(f"stop at e: {answer(**by_text)}, with lookup: {answer(**by_text, prompt_lookup_num_tokens=8)}")
print(f"end of text at e: {answer(**by_token)}, with lookup: {answer(**by_token, prompt_lookup_num_tokens=8)}")
try:
    print("stop at e, with an assistant:", answer(**by_text, assistant_model=model))
except ValueError as error:
    asks = "you must pass the model's tokenizer to the `tokenizer` argument"
    print("stop at e, with an assistant: ValueError:", f"... {asks} ..." if asks in str(error) else error)
PYTHON
seen=$(cd "$folder" && HF_HUB_OFFLINE=1 "$folder/venv/bin/python" ask.py 2>/dev/null)
printf '%s\n' "$seen"
[ "$seen" = "stop at e: bcde, with lookup: bcdefghijklmnopqrstu
end of text at e: bcde, with lookup: bcde
stop at e, with an assistant: ValueError: ... you must pass the model's tokenizer to the \`tokenizer\` argument ..." ] ||
    { echo "this has changed" >&2; exit 1; }
