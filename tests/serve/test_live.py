"""The live page's side of the gateway: traced answers, the state, the orders, and who may give them."""

import asyncio
import re
from pathlib import Path
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from actors.verifier.sources.lookup import Library
from actors.verifier.sources.memory import Memory
from duoactor.serve import live
from duoactor.serve.trace import traced
from protocols.messages import Chunk, Drafting, Kind, Method, Plan, RoundStats, RoundTrace, Status
from tests.serve.gateway import LANGUAGE, TURNS, served
from tests.world.cluster import Cluster

PAGE = {file.name: file.read_text() for file in (Path(live.__file__).parent / "page").iterdir()}
COLUMNS = ("token_ids", "text", "parents", "chance", "origins", "arrived_us")
ASK = {"max_tokens": 60, "temperature": 0.8, "seed": 4, "ignore_eos": True}


async def with_drafters(gateway, *names):
    for name in names:
        gateway.cluster.start_drafter(name, skill=0.7)
    await gateway.cluster.connected(*names)


# --- traced answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "tree", "vanilla"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_traced_answer_is_the_same_text_and_its_origins_add_up(path, method):
    asked = {**ASK, "method": method, **({"messages": TURNS} if "chat" in path else {"prompt": "hello hello"})}
    async with served() as gateway:
        await with_drafters(gateway, "d1")
        plain = (await gateway.post(path, **asked)).json()
        events = await gateway.events(path, **asked, trace=True)
    choice = plain["choices"][0]
    traces = [event["trace"] for event in events if "trace" in event]
    assert "".join(piece for trace in traces for piece in trace["pieces"]) == (
        choice["message"]["content"] if "chat" in path else choice["text"]
    )
    origins = [origin for trace in traces for origin in trace["origins"]]
    figures = events[-1]["metrics"]["speculative_decoding"]
    assert len(origins) == sum(len(trace["token_ids"]) for trace in traces) == 60
    assert len(origins) - origins.count("target") == figures["num_accepted_draft_tokens"]
    assert traces[0]["round"] is None and traces[0]["tree"] is None, "the prompt's own forward"
    for trace in traces[1:]:
        tree, stats = trace["tree"], trace["round"]
        assert stats["method"] == method and stats["forward_us"] >= 0
        assert len({len(tree[name]) for name in COLUMNS}) == 1
        assert [tree["token_ids"][at] for at in tree["path"]][: len(trace["token_ids"])] == trace["token_ids"][:-1]
        assert all(0 <= chance <= 1 for chance in tree["chance"])
        assert stats["window"] <= len(tree["text"])


async def test_a_trace_is_refused_where_it_cannot_be_told():
    async with served() as gateway:
        whole = await gateway.chat(trace=True)
        other = await gateway.post("/v1/responses", input="Hello", trace=True, stream=True)
        untold = await gateway.events("/v1/chat/completions", messages=TURNS, max_tokens=8)
    assert (whole.status_code, whole.json()["error"]["param"]) == (400, "trace")
    assert (other.status_code, other.json()["error"]["param"]) == (400, "trace")
    assert not any("trace" in event for event in untold)


async def test_only_so_many_answers_are_traced_at_once():
    with patch("duoactor.serve.gateway.MAX_TRACED", 2):
        async with served(Cluster(language=LANGUAGE, forward_s=0.002)) as gateway:
            ask = {"messages": TURNS, "max_tokens": 40, "stream": True, "trace": True, "ignore_eos": True}
            running = [asyncio.create_task(gateway.post("/v1/chat/completions", **ask)) for _ in range(2)]
            while gateway.gateway.traced < 2:
                await asyncio.sleep(0.001)
            refused = await gateway.post("/v1/chat/completions", **ask)
            untraced = await gateway.chat()
            assert [(await one).status_code for one in running] == [200, 200]
            again = await gateway.post("/v1/chat/completions", **ask)
    assert (refused.status_code, untraced.status_code, again.status_code) == (429, 200, 200)
    assert "retry-after" in refused.headers


async def test_each_of_the_n_answers_to_a_traced_question_counts():
    with patch("duoactor.serve.gateway.MAX_TRACED", 2):
        async with served() as gateway:
            ask = {"messages": TURNS, "max_tokens": 4, "stream": True, "trace": True}
            three = await gateway.post("/v1/chat/completions", n=3, **ask)
            two = await gateway.post("/v1/chat/completions", n=2, **ask)
    assert (three.status_code, two.status_code) == (429, 200)


# --- the page's files ------------------------------------------------------------------------------------------------


async def test_the_page_and_all_that_it_names_come_from_here_under_a_strict_policy():
    async with served() as gateway:
        page = await gateway.request("GET", "/")
        linked = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
        linked += [f"page/{name}" for text in PAGE.values() for name in re.findall(r'from "\./(.+?)"', text)]
        files = {name: await gateway.request("GET", f"/{name}") for name in linked}
        wrong = ("nothing.js", "..%2fapp.py", "%2e%2e/auth.py")
        missing = [await gateway.request("GET", f"/page/{name}") for name in wrong]
    assert {name: answer.status_code for name, answer in files.items()} == dict.fromkeys(files, 200)
    assert {name.removeprefix("page/") for name in files} | {"index.html"} == set(PAGE)
    assert [answer.status_code for answer in missing] == [404] * 3
    for answer in (page, *files.values()):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert files["page/app.js"].headers["content-type"].startswith("text/javascript")


def test_nothing_in_the_page_is_markup_from_elsewhere_or_another_host():
    for name, text in PAGE.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), name
        assert set(re.findall(r"https?://[^\"' ]+", text)) <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"<[^>]+ (style|on\w+)=", text), name


# --- the state and the orders ----------------------------------------------------------------------------------------


async def test_the_state_tells_drafters_and_many_pages_ask_the_verifier_once():
    async with served() as gateway:
        await with_drafters(gateway, "d1", "d2")
        asked = []
        send = gateway.gateway.client._ask
        with (
            patch.object(live, "FRESH_S", 60.0),
            patch.object(gateway.gateway.client, "_ask", lambda question: (asked.append(question), send(question))[1]),
        ):
            states = await asyncio.gather(*(gateway.request("GET", "/live/state") for _ in range(10)))
    state = states[0].json()
    assert [one["actor_id"] for one in state["drafters"]] == ["d1", "d2"]
    assert {"state", "host", "step_us", "leases", "drafted", "accepted"} <= set(state["drafters"][0])
    assert state["method"] == "auto" and state["running"] == 0
    assert [type(question) for question in asked] == [Status]


async def test_the_state_tells_the_plain_rate_and_the_tokens_that_it_rests_on():
    async with served(Cluster(language=LANGUAGE, forward_s=0.001)) as gateway:
        before = (await gateway.request("GET", "/live/state")).json()
        report = await gateway.gateway.status()
        with patch.object(live, "FRESH_S", 0.0):
            await gateway.chat(method="vanilla", **{**ASK, "max_tokens": live.LEAST_PLAIN})
            few = (await gateway.request("GET", "/live/state")).json()
        await gateway.chat(method="vanilla", **ASK)
        with patch.object(live, "FRESH_S", 0.0):
            after = (await gateway.request("GET", "/live/state")).json()
    assert before["plain"] == {"tokens": 0, "per_second": report.target.tokens_per_second}, "as forwards promise"
    assert few["plain"]["tokens"] == 0, "a rate of 31 tokens is a matter of chance"
    assert after["plain"]["tokens"] == 31 + 59, "the first token is the prompt's forward"
    assert 0 < after["plain"]["per_second"] < 1000


async def test_a_text_that_was_written_before_is_told_as_remembered_and_only_to_its_owner():
    ask = {"messages": TURNS, **ASK, "trace": True}
    async with served(Cluster(language=LANGUAGE, sources=Library(memory=Memory(10_000)))) as gateway:
        first, again = [await gateway.events("/v1/chat/completions", **ask) for _ in range(2)]
        salted = await gateway.events("/v1/chat/completions", **ask, cache_salt="another")
    told = [[o for e in events for o in e.get("trace", {}).get("origins", ())] for events in (first, again, salted)]
    assert [origins.count("remembered") > 20 for origins in told] == [False, True, False]


async def test_a_swap_in_mid_stream_leaves_the_text_equal():
    ask = {"messages": TURNS, **ASK, "max_tokens": 200, "method": "tree"}  # auto may pause a drafter
    async with served(Cluster(language=LANGUAGE, forward_s=0.001)) as gateway:
        await with_drafters(gateway, "d1", "d2")
        whole = (await gateway.post("/v1/chat/completions", **ask)).json()["choices"][0]["message"]["content"]
        answer = asyncio.create_task(gateway.events("/v1/chat/completions", **ask, trace=True))
        state = gateway.cluster.verifier.state
        while not any(request.tally.rounds > 5 for request in state.requests):
            await asyncio.sleep(0.001)
        (holder,) = (one.actor_id for one in state.drafters.by_peer.values() if one.leases)
        other = {"d1": "d2", "d2": "d1"}[holder]
        done = await gateway.post("/live/swap", old=holder, new=other)
        events = await answer
        gone = await gateway.post("/live/swap", old="nobody", new=other)
        drained = await gateway.post("/live/drain", actor_id=holder)
    assert done.status_code == 200 and "moved" in done.json()["detail"]
    assert "".join(p for e in events for p in e.get("trace", {}).get("pieces", ())) == whole
    used = [e["trace"]["round"]["drafter"] for e in events if e.get("trace", {}).get("round")]
    assert used[-1] == other and holder in used
    assert gone.status_code == 404 and "d1" in gone.json()["error"]["message"]
    assert drained.status_code == 200


@pytest.mark.parametrize("drafter", ["d1", "head"])  # the first verifier's; others may have none of that name
async def test_the_page_does_not_make_the_verifier_load_a_head(drafter):
    """Whoever may ask for text may move streams between drafters, and not name files to load."""
    async with served() as gateway:
        await with_drafters(gateway, drafter)
        answer = await gateway.post("/live/swap", old="head", new="/etc")
    assert answer.status_code == 404 and "duoactor swap head" in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [{}, {"old": 1, "new": "d"}, {"old": "a", "new": "b", "more": 1}, ["x"]])
async def test_an_order_that_is_none_is_refused(body):
    async with served() as gateway:
        assert (await gateway.request("POST", "/live/swap", body)).status_code == 400


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 404),  # no browser: there is no such drafter
        ({"origin": "http://127.0.0.1:{port}"}, 404),
        ({"origin": "http://localhost:{port}", "host": "localhost:{port}"}, 404),
        ({"origin": "https://app.example"}, 404),  # named by --cors-origin
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.example:{port}", "host": "evil.example:{port}"}, 403),  # a name that points at us
    ],
)
async def test_another_sites_page_cannot_give_orders(headers, expected):
    async with served(origins=("https://app.example",)) as gateway:
        given = {name: value.format(port=gateway.port) for name, value in headers.items()}
        answer = await gateway.request("POST", "/live/swap", {"old": "a", "new": "b"}, headers=given)
    assert answer.status_code == expected, answer.text


async def test_with_keys_the_page_is_open_and_nothing_behind_it():
    async with served(keys=("k",)) as gateway:
        key = {"authorization": "Bearer k"}
        order = {"old": "a", "new": "b"}
        statuses = [
            (await gateway.request("GET", "/")).status_code,
            (await gateway.request("GET", "/page/app.js")).status_code,
            (await gateway.request("GET", "/live/state")).status_code,
            (await gateway.request("POST", "/live/swap", order)).status_code,
            (await gateway.request("POST", "/live/drain", {"actor_id": "a"})).status_code,
            (await gateway.request("GET", "/live/state", headers=key)).status_code,
            (await gateway.request("POST", "/live/swap", order, headers=key)).status_code,
        ]
    assert statuses == [200, 200, 401, 401, 401, 200, 404]


@pytest.mark.parametrize(("keys", "alone"), [(("k",), True), (("k", "k"), True), (("k", "other"), False)])
async def test_one_key_of_several_gives_no_orders_and_sees_no_requests_of_others(keys, alone):
    async with served(keys=keys) as gateway:
        key = {"x-api-key": "k"}
        swap = await gateway.request("POST", "/live/swap", {"old": "a", "new": "b"}, headers=key)
        drain = await gateway.request("POST", "/live/drain", {"actor_id": "a"}, headers=key)
        slots = await gateway.request("GET", "/slots", headers=key)
    statuses = [one.status_code for one in (swap, drain, slots)]
    assert statuses == ([404, 404, 200] if alone else [403] * 3)
    assert all(("several API keys" in one.text and "`duoactor " in one.text) != alone for one in (swap, drain, slots))


@pytest.mark.parametrize(
    ("drafter", "plan", "own"), [("", None, True), ("d1", None, True), ("d1", Plan(Method.TREE), False)]
)
def test_a_round_in_which_the_verifier_drafted_itself_says_when(drafter, plan, own):
    drafting = Drafting(forwards=((3, 4),))
    stats = RoundStats(
        "r", 1, Kind("auto", drafter), 0, 0, 1, 1, 500.0, 200.0, 700.0, started_us=1000.0, plan=plan, drafting=drafting
    )
    named = traced(Chunk("r", 0, (2,), ("a",), (False,), trace=RoundTrace(stats, (), (), (), (), (), ())), {}).round
    assert named["own_drafts"] is own
    assert named["draft_forwards"] == ([(800.0, 200.0)] if own else ((3, 4),))


@pytest.mark.parametrize("model", ["bundled", "bundled-8x1536", "some/model"])
async def test_the_state_says_what_a_bundled_model_can_do(model: str):
    async with served() as gateway:
        report = await gateway.gateway.status()
    told = live.page_state(replace(report, target=replace(report.target, model_id=model)), model)["about"]
    assert ("captions" in told and "duoactor up smollm2" in told) == (model != "some/model") == bool(told)
