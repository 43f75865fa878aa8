import asyncio

from agents import Agent, Runner
from openai.types.responses import ResponseTextDeltaEvent


async def main():
    agent = Agent(name="Assistant", model="gpt-6-luna")
    async for event in Runner.run_streamed(agent, "Where is it wet?").stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            print(event.data.delta, end="")


asyncio.run(main())
