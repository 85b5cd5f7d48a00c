"""Objects of the common model SDKs, made from recorded payloads, come back equal without any annotation."""

from __future__ import annotations

import datetime as dt
import importlib.util
from typing import Any

import pytest
from pydantic import BaseModel

from agent_resume.codec import DEFAULT
from agent_resume.errors import OutputNotStorable

# The SDKs have changed from the one to the other; what they bring is there.
HTTPX = "httpx" if importlib.util.find_spec("httpx") else "httpx2"


class Answer(BaseModel):
    text: str


def check(value: Any) -> Any:
    encoded, first = DEFAULT.settle(value)
    again = DEFAULT.decode(encoded.format, encoded.text)
    for back in (first, again):
        assert type(back) is type(value)
        assert back == value
        assert back is not value
    assert DEFAULT.encode(again) == encoded
    assert DEFAULT.digest(again) == DEFAULT.digest(value)
    return again


ANTHROPIC: dict[str, Any] = {
    "id": "msg_01", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "stop_reason": "tool_use",
    "stop_sequence": None, "a_field_of_tomorrow": {"x": [1]},
    "content": [
        {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"},
        {"type": "text", "text": "I will look it up.", "citations": None},
        {"type": "tool_use", "id": "toolu_01", "name": "get_order", "input": {"order_id": "A-1", "n": 3}},
    ],
    "usage": {
        "input_tokens": 12, "output_tokens": 34, "cache_creation_input_tokens": 0, "cache_read_input_tokens": None,
        "service_tier": "standard",
    },
}  # fmt: skip
OPENAI: dict[str, Any] = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1769850487, "model": "gpt-5", "system_fingerprint": "fp_1",
    "choices": [
        {
            "index": 0, "finish_reason": "tool_calls", "logprobs": None,
            "message": {
                "role": "assistant", "content": None, "refusal": None, "annotations": [],
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "get", "arguments": "{\"id\": 1}"}}
                ],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    },
    "a_field_of_tomorrow": True,
}  # fmt: skip


@pytest.mark.timeout(300)  # the SDK builds its schemas on first use
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_an_anthropic_message_comes_back_equal() -> None:
    types = pytest.importorskip("anthropic.types", reason="install the extra 'sdk'")
    tomorrow = {**ANTHROPIC, "content": [*ANTHROPIC["content"], {"type": "a_block_of_tomorrow", "payload": {"k": 1.5}}]}
    for message in (types.Message.model_validate(ANTHROPIC), types.Message.construct(**tomorrow)):
        back = check(message)
        assert back.content[2].input == {"order_id": "A-1", "n": 3}
        assert type(back.content[1]) is type(message.content[1])
        assert back.to_dict() == message.to_dict()
        assert back.model_fields_set == message.model_fields_set
    message._request_id = "req_1"
    assert check([message])[0]._request_id == "req_1"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_anthropic_message_parsed_by_the_client_comes_back_equal() -> None:
    anthropic = pytest.importorskip("anthropic", reason="install the extra 'sdk'")
    httpx = pytest.importorskip(HTTPX, reason="comes with the SDKs")
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=ANTHROPIC, headers={"request-id": "req_2"}))
    with anthropic.Anthropic(api_key="sk-test-123", http_client=httpx.Client(transport=transport)) as client:
        message = client.messages.create(
            model="claude-sonnet-4-5", max_tokens=10, messages=[{"role": "user", "content": "hi"}]
        )
    assert check(message)._request_id == "req_2"


def test_an_openai_completion_comes_back_equal() -> None:
    chat = pytest.importorskip("openai.types.chat", reason="install the extra 'sdk'")
    for completion in (chat.ChatCompletion.model_validate(OPENAI), chat.ChatCompletion.construct(**OPENAI)):
        back = check(completion)
        assert back.choices[0].message.tool_calls[0].function.arguments == '{"id": 1}'
        assert back.to_dict() == completion.to_dict()


def test_an_openai_completion_parsed_by_the_client_comes_back_equal() -> None:
    openai = pytest.importorskip("openai", reason="install the extra 'sdk'")
    httpx = pytest.importorskip(HTTPX, reason="comes with the SDKs")
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=OPENAI, headers={"x-request-id": "req_3"}))
    with openai.OpenAI(api_key="sk-test-123", http_client=httpx.Client(transport=transport)) as client:
        completion = client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "hi"}])
    assert check(completion)._request_id == "req_3"


def test_an_openai_parsed_completion_is_generic_and_comes_back_equal() -> None:
    chat = pytest.importorskip("openai.types.chat", reason="install the extra 'sdk'")
    parsed = chat.ParsedChatCompletion[Answer].construct(**OPENAI)
    parsed.choices[0].message.parsed = Answer(text="x")
    assert check(parsed).choices[0].message.parsed == Answer(text="x")


def test_an_openai_response_comes_back_equal() -> None:
    responses = pytest.importorskip("openai.types.responses", reason="install the extra 'sdk'")
    payload = {
        "id": "resp_1", "object": "response", "created_at": 1769850487.0, "model": "gpt-5", "status": "completed",
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {
                "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
            },
        ],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {}, "error": None,
        "incomplete_details": None, "instructions": None, "temperature": 1.0, "top_p": 1.0,
    }  # fmt: skip
    back = check(responses.Response.construct(**payload))
    assert back.output_text == "Hello"


def test_pydantic_ai_messages_and_results_come_back_equal() -> None:
    messages = pytest.importorskip("pydantic_ai.messages", reason="install the extra 'sdk'")
    usage = pytest.importorskip("pydantic_ai.usage", reason="install the extra 'sdk'")
    at = dt.datetime(2026, 1, 31, 9, 8, 7, tzinfo=dt.UTC)
    history = [
        messages.ModelRequest(parts=[messages.SystemPromptPart("be kind"), messages.UserPromptPart("hi", timestamp=at)]),
        messages.ModelResponse(
            parts=[messages.TextPart("hello"), messages.ToolCallPart("get", {"id": 1}, tool_call_id="c1")],
            model_name="test", timestamp=at, usage=usage.RequestUsage(input_tokens=1, output_tokens=2),
        ),
        messages.ModelRequest(parts=[messages.ToolReturnPart("get", {"n": (1, 2)}, tool_call_id="c1", timestamp=at)]),
    ]  # fmt: skip
    check(history)
    check(usage.RunUsage(requests=1, input_tokens=3, details={"reasoning": 1}))
    parsed = messages.ModelMessagesTypeAdapter.validate_json(messages.ModelMessagesTypeAdapter.dump_json(history))
    check(parsed)


def test_a_pydantic_ai_result_made_from_a_record_comes_back_equal() -> None:
    run = pytest.importorskip("pydantic_ai.run", reason="install the extra 'sdk'")
    messages = pytest.importorskip("pydantic_ai.messages", reason="install the extra 'sdk'")
    result = run.AgentRunResult(output=Answer(text="x"))
    result._state.message_history.append(messages.ModelResponse(parts=[messages.TextPart("x")]))
    back = check(result)
    assert back.all_messages() == result.all_messages()
    assert back.usage == result.usage


@pytest.mark.filterwarnings("ignore")
async def test_a_live_pydantic_ai_result_is_kept_or_says_what_in_it_cannot_be() -> None:
    ai = pytest.importorskip("pydantic_ai", reason="install the extra 'sdk'")
    models = pytest.importorskip("pydantic_ai.models.test", reason="install the extra 'sdk'")
    result = await ai.Agent(models.TestModel(), output_type=Answer).run("hi")
    check({"output": result.output, "messages": result.all_messages(), "usage": result.usage})
    try:
        _, back = DEFAULT.settle(result)
    except OutputNotStorable as error:
        # It holds on to the workspace of the run.
        assert error.path.startswith("$._")
    else:
        assert back == result
