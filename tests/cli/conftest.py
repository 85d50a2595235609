from __future__ import annotations

import pytest

from tests.cli.fake_client import FakeClient


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()
