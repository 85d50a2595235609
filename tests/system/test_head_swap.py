"""The bundled target and tiny heads: one takes another's place while text streams, and one drafts in a drafter."""

import asyncio
import json
import subprocess

from safetensors.torch import save_file

from duoactor import AsyncClient
from tests.engines.heads.published import EAGLE3, eagle3_weights
from tests.world.processes import WAIT_S, Up, command, run

BUNDLED = {"hidden_size": 384, "vocab_size": 8192}
ASKED = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 1.0, "seed": 5, "ignore_eos": True}
BEGUN = 60
BEGINNING = ASKED | {"max_tokens": BEGUN}


def head(directory, **options):
    directory.mkdir()
    save_file(eagle3_weights(hidden=384, **options), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(EAGLE3 | BUNDLED))
    return directory


def test_heads_are_swapped_and_refused_by_command_and_the_text_is_the_targets(tmp_path):
    first, second = head(tmp_path / "first", read=384), head(tmp_path / "second", read=384)
    wrong = head(tmp_path / "wrong", read=64)
    up = Up(tmp_path, "--draft", str(first))
    try:

        async def story():
            async with AsyncClient(up.address, timeout=WAIT_S) as client:
                plain = await client.generate(**ASKED, method="vanilla")
                stream = asyncio.create_task(client.generate(**ASKED, method="auto"))
                said = [await asyncio.to_thread(swap, new) for new in (wrong, second)]
                inline = (await client.status()).inline
                back = await asyncio.to_thread(swap)
                assert (await stream).token_ids == plain.token_ids
                after = await client.generate(**BEGINNING, method="auto")
                assert after.token_ids == plain.token_ids[:BEGUN]
                with drafter(first) as process:  # its states are sent
                    try:
                        while not (await client.status()).drafters:
                            assert process.poll() is None
                            await asyncio.sleep(0.1)
                        while not (await client.status()).drafters[0].drafted:  # it may be late on a busy machine
                            apart = await client.generate(**BEGINNING, method="sps")
                            assert apart.token_ids == plain.token_ids[:BEGUN]
                    finally:
                        process.terminate()
                return *said, inline, back

        def drafter(head):
            place = "--connect", up.address, "--draft", str(head), "--target", "bundled"
            return subprocess.Popen(command("drafter", *place))

        def swap(*new):
            return run("swap", "head", *map(str, new), "--connect", up.address)

        refused, swapped, inline, back = asyncio.run(story())
    finally:
        up.stop()
    assert refused.returncode == 1
    assert "states of 64 numbers and the target's have 384" in refused.stderr
    assert swapped.stdout.startswith("drafts with second from now on, no more with first")
    assert inline.model_id == "second"
    assert back.stdout.startswith("drafts with first")
