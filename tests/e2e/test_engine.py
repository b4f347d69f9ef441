"""What the engine does for a client of the whole server: constraints, the cache of prefixes, metrics."""

import json
import re
import time

import httpx
import openai
import pytest

from tests.e2e.asking import MODEL, image_part, noise, user
from triton_renderer.settings import Settings

SCHEMA = {
    "type": "object",
    "properties": {"shape": {"enum": ["circle", "square", "triangle"]}, "count": {"type": "integer", "maximum": 9}},
    "required": ["shape", "count"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA, "strict": True}} for name in ("one", "other")]


def said(client: openai.OpenAI, **fields: object) -> openai.types.chat.ChatCompletionMessage:
    options: dict[str, object] = {"model": MODEL, "messages": user("Hello"), "max_tokens": 80} | fields
    return client.chat.completions.create(**options).choices[0].message  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("temperature", [0, 1])
def test_answer_is_of_the_schema(client: openai.OpenAI, temperature: float) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    # A model that was never taught JSON spends tokens on white space, as far as the grammar lets it.
    message = said(client, response_format=schema, temperature=temperature, max_tokens=400)
    answer = json.loads(message.content or "")
    assert answer.keys() == {"shape", "count"}
    assert answer["shape"] in SCHEMA["properties"]["shape"]["enum"]  # type: ignore[index]
    assert answer["count"] <= 9


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"choice": ["left", "right"]}, "left|right"),
        ({"regex": "[a-c]{3}-[0-9]{2}"}, "[a-c]{3}-[0-9]{2}"),
        ({"grammar": 'root ::= "<" [xyz]+ ">"'}, "<[xyz]+>?"),
    ],
)
def test_answer_is_of_the_constraint(client: openai.OpenAI, constraint: dict[str, object], pattern: str) -> None:
    content = said(client, extra_body={"structured_outputs": constraint}, temperature=1, seed=3).content
    assert re.fullmatch(pattern, content or "")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "other"}}])
def test_a_forced_call_is_made_and_is_of_its_schema(client: openai.OpenAI, choice: object) -> None:
    message = said(client, tools=TOOLS, tool_choice=choice, max_tokens=300)
    assert message.tool_calls
    for call in message.tool_calls:
        assert isinstance(call, openai.types.chat.ChatCompletionMessageFunctionToolCall)
        assert call.function.name in (("one", "other") if choice == "required" else ("other",))
        assert json.loads(call.function.arguments).keys() == {"shape", "count"}


def test_the_same_picture_again_is_found_in_the_cache_and_another_is_not(client: openai.OpenAI) -> None:
    def cached(seed: int) -> int:
        answer = client.chat.completions.create(
            model=MODEL, messages=user(image_part(noise(seed)), "How many circles?"), temperature=0, max_tokens=4
        )
        assert answer.usage
        details = answer.usage.prompt_tokens_details
        return details.cached_tokens or 0 if details else 0

    first, again, other = cached(901), cached(901), cached(902)
    assert again > first + 16
    assert other <= first


def test_stages_show_their_metrics_on_tritons_port(client: openai.OpenAI, settings: Settings) -> None:
    said(client, max_tokens=3, messages=user(image_part(noise(903)), "How many circles?"))

    def shown() -> dict[str, float]:
        text = httpx.get(f"http://127.0.0.1:{settings.triton_metrics_port}/metrics", timeout=10).text
        return {name: float(value) for name, value in re.findall(r"^(triton_renderer_\w+)(?:\{\})? (\S+)$", text, re.MULTILINE)}

    counted = {"generated_tokens_total", "time_to_first_token_seconds_count", "encoder_cache_misses_total"}
    deadline = time.monotonic() + 10  # the stages hand their sums over twice a second
    while not all(shown().get(f"triton_renderer_{name}") for name in counted):
        assert time.monotonic() < deadline, shown()
        time.sleep(0.1)
    assert {"triton_renderer_kv_cache_used_ratio", "triton_renderer_running_sequences"} <= shown().keys()
