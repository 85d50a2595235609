"""Tensors of a checkpoint that a text model does without, by their names. Any other that nothing takes is refused."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from protocols.errors import ModelError

LAYERS = "layers for more tokens, which a draft head reads"
LAYER = re.compile(r"\.layers\.(\d{1,9})\.")  # the number of the layer that a tensor belongs to
UNNEEDED = {  # why: names
    "computed from the configuration": r"(.*\.)?(inv_freq|rotary_emb\..*|position_ids|embed_positions\._float_tensor)",
    "numbers of xIELU that are the same in every checkpoint": r".*\.act_fn\.(beta|eps)",
    "a causal mask": r"(.*\.)?(attn|attention)\.(bias|masked_bias)",
    "scales of a cache with fewer bits": (
        r".*\.(q|k|v|kv|prob)_(scale|zero_point)|.*\.output_scale|.*\.(k_proj\.k|v_proj\.v)_bias"
    ),
    "the embedding, which is the head too": r"(model\.|language_model\.)*(lm_head|embed_out|output)\.weight",
    LAYERS: r"(model\.)*(mtp|nextn)\w*\..*",
    "what ids of a smaller vocabulary stand for": r"(.*\.)?(d2t|t2d)",
    "parts for images, sound and films": (
        r"(model\.|thinker\.|base_model\.)*(visual|vision\w*|vit|image\w*|video\w*|audio\w*|speech\w*|talker|token2wav|"
        r"code2wav|embed_vision|embed_audio|multi_modal_projector|mm_projector|\w*projector|patch_\w*|connector|"
        r"embed_tokens_extend|perceiver\w*|resampler|aligner|qformer|query_tokens)(\..*)?"
    ),
}
OF_ACTIVATIONS = re.compile(UNNEEDED["scales of a cache with fewer bits"])


def unneeded(but: Container[str] = ()) -> re.Pattern[str]:
    """Matches the whole names of such tensors. ``but``: reasons that do not count."""
    return re.compile("|".join(f"(?:{names})" for why, names in UNNEEDED.items() if why not in but))


_UNNEEDED = unneeded()


def refuse_unused(where: str, names: Iterable[str], layers: int) -> None:
    """Raise ModelError for a tensor of a checkpoint that nothing has taken, unless it is known why. ``layers``: of the
    model; later layers draft."""
    if strange := without_place(names, layers):
        others = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise ModelError(
            f"{where} has tensors without a place in its model, {min(strange)}{others}, so answers would "
            "be another model's; download it again, or choose a checkpoint that transformers reads without a warning"
        )


def without_place(names: Iterable[str], layers: int) -> list[str]:
    return [name for name in names if _UNNEEDED.fullmatch(name) is None and not drafts(name, layers)]


def drafts(name: str, layers: int) -> bool:
    """Whether a tensor is of a layer for more tokens. ``layers``: of the model."""
    found = LAYER.search(f".{name}")
    return re.fullmatch(UNNEEDED[LAYERS], name) is not None or (found is not None and int(found[1]) >= layers)
