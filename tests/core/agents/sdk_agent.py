"""An agent on the SDK's agent side: a counterparty that we did not write.

It speaks by the SDK's own connection and builds every message from its models.
"""

from __future__ import annotations

import asyncio
from typing import Any

from acp import schema, update_agent_message_text
from acp.connection import Connection
from acp.stdio import stdio_streams


class Echo:
    """Echoes the prompt, and asks one permission in every turn."""

    connection: Connection

    async def handle(self, method: str, params: Any, is_notification: bool) -> Any:
        if method == "initialize":
            asked = schema.InitializeRequest.model_validate(params)
            return schema.InitializeResponse(protocol_version=asked.protocol_version)
        if method == "session/new":
            schema.NewSessionRequest.model_validate(params)
            return schema.NewSessionResponse(session_id="sdk-1")
        if method == "session/prompt":
            return await self.prompt(schema.PromptRequest.model_validate(params))
        return None

    async def prompt(self, request: schema.PromptRequest) -> schema.PromptResponse:
        first = request.prompt[0]
        await self.say(first.text if isinstance(first, schema.TextContentBlock) else "?")
        option = schema.PermissionOption(option_id="yes", name="Yes", kind="allow_once")
        asked = schema.RequestPermissionRequest(
            session_id="sdk-1",
            tool_call=schema.ToolCallUpdate(tool_call_id="t1", title="Write"),
            options=[option],
        )
        result = await self.connection.send_request("session/request_permission", plain(asked))
        answer = schema.RequestPermissionResponse.model_validate(result)
        await self.say(answer.outcome.outcome)
        return schema.PromptResponse(stop_reason="end_turn")

    async def say(self, text: str) -> None:
        note = schema.SessionNotification(
            session_id="sdk-1", update=update_agent_message_text(text)
        )
        await self.connection.send_notification("session/update", plain(note))


def plain(model: Any) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def main() -> None:
    reader, writer = await stdio_streams()
    agent = Echo()
    agent.connection = Connection(agent.handle, writer, reader, listening=False)
    await agent.connection.main_loop()


if __name__ == "__main__":
    asyncio.run(main())
