"""The description at /openapi.json names every route but the live page's, and every parameter."""

from duoactor.serve.app import make_app
from duoactor.serve.openai.chat import ChatRequest
from tests.serve.gateway import served

NOT_DESCRIBED = {"/", "/page/{name}", "/live/state", "/live/swap", "/live/drain", "/openapi.json"}


async def test_the_description_covers_every_route_and_parameter_and_resolves():
    async with served() as gateway:
        described = (await gateway.request("GET", "/openapi.json")).json()
        for path, methods in described["paths"].items():
            path = path.format(name="toy", ident="none")
            for method in methods:
                answer = await gateway.request(method.upper(), path, {} if method == "post" else None)
                expected = 400 if method == "post" else 404 if "/none" in path else 200
                assert answer.status_code == expected, path
        routes = {route.path.replace(":path", "") for route in make_app(gateway.gateway).routes}
    assert routes - NOT_DESCRIBED == set(described["paths"])
    schemas = described["components"]["schemas"]
    assert set(schemas["ChatRequest"]["properties"]) == set(ChatRequest.__struct_fields__)

    def references(value):
        if isinstance(value, dict):
            yield from ([value["$ref"]] if "$ref" in value else [])
            for item in value.values():
                yield from references(item)
        elif isinstance(value, list):
            for item in value:
                yield from references(item)

    assert {reference.rsplit("/", 1)[-1] for reference in references(described)} <= set(schemas)
