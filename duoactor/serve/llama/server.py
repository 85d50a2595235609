"""``/props``, ``/slots`` and ``/apply-template``: the verifier as llama-server describes itself."""

from __future__ import annotations

from typing import Any

from duoactor import __version__
from duoactor.serve.gateway import Gateway, Model
from duoactor.serve.llama.requests import USUAL, sampling_named
from protocols.messages import StatusReport


async def props(gateway: Gateway, template: str) -> dict[str, Any]:
    model, report = await gateway.model(), await gateway.status()
    asked = slots(model, report)
    sampling = model.sampling_by(USUAL)
    return {
        "default_generation_settings": {
            "id": 0,
            "n_ctx": model.max_context,
            "speculative": asked[0]["speculative"],
            "is_processing": False,
            "params": {
                "n_predict": -1,
                "seed": -1,
                **sampling_named(sampling),
            },
        },
        "total_slots": len(asked),
        "model_alias": model.names[0],
        "model_path": report.target.model_id,
        "chat_template": template,
        "modalities": {"vision": False, "audio": False},
        "build_info": f"duoactor {__version__}",
        "is_sleeping": False,
    }


def slots(model: Model, report: StatusReport) -> list[dict[str, Any]]:
    """One for each open request, and a free one if there is none: their number is not fixed here."""
    busy = [
        {
            "id": at,
            "id_task": at,
            "n_ctx": model.max_context,
            "speculative": one.method != "vanilla",
            "is_processing": one.state != "queued",
            "next_token": {"has_next_token": True, "n_decoded": one.tokens},
        }
        for at, one in enumerate(report.requests)
    ]
    idle = {"id": 0, "n_ctx": model.max_context, "speculative": report.method != "vanilla", "is_processing": False}
    return busy or [idle]
