"""RolloutConfig: what a run, its record and its repeat share."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.errors import UsageError
from core.services.config import PERMISSIONS, USERS, RolloutConfig

TEXT = st.text(max_size=8)
CONFIGS = st.builds(
    RolloutConfig,
    path=TEXT,
    agent=TEXT,
    model=st.none() | TEXT,
    user=st.sampled_from(USERS),
    answers=st.lists(TEXT, max_size=3).map(tuple),
    permissions=st.sampled_from(PERMISSIONS),
    repeats=st.integers(1, 9),
    concurrency=st.integers(1, 9),
    timeout=st.none() | st.floats(0.1, 1e6),
    ask_timeout=st.none() | st.floats(0.1, 1e6),
    seed=st.integers(0, 99),
)


@given(CONFIGS)
def test_a_saved_config_is_the_same_config(config: RolloutConfig) -> None:
    saved = json.loads(json.dumps(config.to_json()))
    assert RolloutConfig.from_json(saved) == config


@given(CONFIGS)
def test_keys_of_another_version_are_ignored(config: RolloutConfig) -> None:
    saved = {**config.to_json(), "mood": "sunny"}
    assert RolloutConfig.from_json(saved) == config


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("user", "nobody", "scripted, auto, human"),
        ("permissions", "sometimes", "auto, ask, deny"),
        ("repeats", 0, "repeats is 0"),
        ("concurrency", -1, "concurrency is -1"),
        ("timeout", 0.0, "timeout is 0"),
        ("timeout", float("nan"), "timeout is nan"),
        ("ask_timeout", -2.0, "ask_timeout is -2"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_what_can(
    field: str, value: object, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        RolloutConfig(path="task", **{field: value})  # type: ignore[arg-type]
