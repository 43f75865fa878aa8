// Reads a daemon's answers with the Vercel AI SDK and the SDKs of OpenAI and Anthropic for Node: read_answers.mjs URL TOKEN
// What the scripted model says to which words: tests/support/answering_daemon.py. Prints a line for each check; exit
// status 1 where one failed.

import assert from "node:assert/strict";
import * as anthropicNow from "@ai-sdk/anthropic";
import * as openaiNow from "@ai-sdk/openai";
import * as compatibleNow from "@ai-sdk/openai-compatible";
// Older ones are stricter: before 4.0.50 any `citations` that is no list was refused, for one.
import * as anthropicBefore from "ai-sdk-anthropic-3";
import * as openaiBefore from "ai-sdk-openai-3";
import * as compatibleBefore from "ai-sdk-openai-compatible-2";
import Anthropic from "@anthropic-ai/sdk";
import { APICallError, Output, generateText, isStepCount, jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";

globalThis.AI_SDK_LOG_WARNINGS = false;
const [url, token] = process.argv.slice(2);
const MODEL = "scripted/model";
const WEATHER = 'call [["weather", {"city": "Oslo"}]]';
const CALENDAR = 'call [["calendar", {"day": "Monday"}]]';
const BOTH = 'call [["weather", {"city": "Oslo"}], ["calendar", {"day": "Monday"}], ["calendar", {"day": "Tuesday"}]]';
const SCHEMA = { type: "object", properties: { day: { type: "string" } }, required: ["day"], additionalProperties: false };
const PLACE = {
    type: "object",
    properties: { city: { type: "string" }, degrees: { type: "number" } },
    required: ["city", "degrees"],
    additionalProperties: false,
};
const busyOn = ({ day }) => `busy on ${day}`;
const user = (content) => [{ role: "user", content }];
let failed = 0;
let passed = 0;

async function check(name, act) {
    try {
        await act();
        passed += 1;
    } catch (error) {
        failed += 1;
        const value = error.value ?? error.cause?.value;
        console.log(`FAIL  ${name}: ${error.name}: ${String(error.message).slice(0, 600)} ${JSON.stringify(value ?? "").slice(0, 600)}`);
    }
}

async function rejects(promise, status, word) {
    const error = await promise.then(
        (value) => assert.fail(`answered ${JSON.stringify(value).slice(0, 200)}`),
        (caught) => caught,
    );
    assert.equal(error.statusCode ?? error.status, status, `${error.name}: ${error.message}`);
    assert.match(error.message, word);
    return error;
}

// -- the Vercel AI SDK

const wrong = "a-token-that-nobody-has-0123456789";
const at = (key) => ({ baseURL: `${url}/v1`, apiKey: key ?? token });
const compatible = { name: "callboard", includeUsage: true, supportsStructuredOutputs: true };
const KINDS = {};
for (const [when, openai, { createOpenAICompatible }, { createAnthropic }] of [
    ["now", openaiNow, compatibleNow, anthropicNow],
    ["before", openaiBefore, compatibleBefore, anthropicBefore],
]) {
    KINDS[`ai, openai ${when}, chat`] = (key) => openai.createOpenAI(at(key)).chat;
    KINDS[`ai, openai ${when}, responses`] = (key) => openai.createOpenAI(at(key)).responses;
    KINDS[`ai, openai-compatible ${when}`] = (key) => createOpenAICompatible({ ...compatible, ...at(key) });
    KINDS[`ai, anthropic ${when}`] = (key) => createAnthropic(at(key));
}
const calendar = tool({ description: "What is on.", inputSchema: jsonSchema(SCHEMA), execute: async (day) => busyOn(day) });
const handedOut = tool({ description: "What is on.", inputSchema: jsonSchema(SCHEMA) });

// The Responses API shows the calls that ran in the daemon too, as done.
const isOurs = (call) => !call.providerExecuted;

async function read(stream) {
    const found = { text: "", reasoning: "", calls: [], errors: [], kinds: [] };
    for await (const part of stream.fullStream ?? stream.stream) {
        found.kinds.push(part.type);
        if (part.type === "text-delta") found.text += part.text;
        if (part.type === "reasoning-delta") found.reasoning += part.text;
        if (part.type === "tool-call") found.calls.push(part);
        if (part.type === "error") found.errors.push(part.error);
    }
    return found;
}

for (const [name, kind] of Object.entries(KINDS)) {
    const asked = (prompt, more = {}) => ({ model: kind()(MODEL), prompt, maxRetries: 0, maxOutputTokens: 500, onError: () => undefined, ...more });
    await check(`${name}: a whole answer`, async () => {
        const answer = await generateText(asked("hello"));
        assert.equal(answer.text, "You said: hello");
        assert.equal(answer.finishReason, "stop");
        assert.equal(answer.usage.inputTokens, 11);
        assert.equal(answer.usage.outputTokens, 7);
        assert.deepEqual(answer.warnings ?? [], []);
    });
    await check(`${name}: a streamed answer`, async () => {
        const stream = streamText(asked("hello"));
        const found = await read(stream);
        assert.deepEqual(found.errors, []);
        assert.equal(found.text, "You said: hello");
        assert.equal(await stream.finishReason, "stop");
        assert.equal((await stream.usage).outputTokens, 7);
    });
    await check(`${name}: thinking, whole`, async () => {
        const answer = await generateText(asked("think hello"));
        assert.equal(answer.text, "You said: hello");
    });
    await check(`${name}: thinking, streamed`, async () => {
        const found = await read(streamText(asked("think hello")));
        assert.deepEqual(found.errors, []);
        assert.equal(found.text, "You said: hello");
    });
    await check(`${name}: cut at its length`, async () => {
        assert.equal((await generateText(asked("short hello"))).finishReason, "length");
        const stream = streamText(asked("short hello"));
        assert.deepEqual((await read(stream)).errors, []);
        assert.equal(await stream.finishReason, "length");
    });
    await check(`${name}: a tool of the daemon, whole and streamed`, async () => {
        assert.match((await generateText(asked(WEATHER))).text, /One moment\.\s*The tools said: rain in Oslo/);
        const found = await read(streamText(asked(WEATHER)));
        assert.deepEqual(found.errors, []);
        assert.match(found.text, /One moment\.\s*The tools said: rain in Oslo/);
    });
    await check(`${name}: calls that are handed out`, async () => {
        const answer = await generateText(asked(BOTH, { tools: { calendar: handedOut } }));
        assert.equal(answer.finishReason, "tool-calls");
        assert.deepEqual(answer.toolCalls.filter(isOurs).map((call) => call.input), [{ day: "Monday" }, { day: "Tuesday" }]);
        const found = await read(streamText(asked(BOTH, { tools: { calendar: handedOut } })));
        assert.deepEqual(found.errors, []);
        assert.deepEqual(found.calls.filter(isOurs).map((call) => call.input), [{ day: "Monday" }, { day: "Tuesday" }]);
    });
    await check(`${name}: calls that are answered`, async () => {
        const more = { tools: { calendar }, stopWhen: isStepCount(3) };
        const said = /The tools said: rain in Oslo and busy on Monday and busy on Tuesday/;
        assert.match((await generateText(asked(BOTH, more))).text, said);
        const stream = streamText(asked(BOTH, more));
        const found = await read(stream);
        assert.deepEqual(found.errors, []);
        assert.match(await stream.text, said);
    });
    await check(`${name}: a tool that must be called`, async () => {
        const answer = await generateText(asked("hello", { tools: { calendar: handedOut }, toolChoice: "required" }));
        assert.deepEqual(answer.toolCalls.map((call) => call.toolName), ["calendar"]);
    });
    await check(`${name}: an answer with a form, whole and streamed`, async () => {
        const more = { output: Output.object({ schema: jsonSchema(PLACE) }) };
        assert.deepEqual((await generateText(asked("where?", more))).output, { city: "Oslo", degrees: 4.5 });
        const stream = streamText(asked("where?", more));
        assert.deepEqual((await read(stream)).errors, []);
        assert.deepEqual(await stream.output, { city: "Oslo", degrees: 4.5 });
    });
    await check(`${name}: errors`, async () => {
        const others = { model: kind(wrong)(MODEL) };
        const error = await rejects(generateText(asked("hello", others)), 401, /token/);
        assert.ok(APICallError.isInstance(error));
        await rejects(generateText(asked("hello", { model: kind()("openai/gpt-9") })), 404, /gpt-9/);
        await rejects(generateText(asked("fail rate_limited")), 429, /rate_limited/);
        await rejects(generateText(asked("fail other")), 502, /the model failed/);
        const [first] = (await read(streamText(asked("hello", others)))).errors;
        assert.equal(first?.statusCode, 401);
    });
    await check(`${name}: an answer that breaks off`, async () => {
        if (name === "ai, openai before, responses") return; // it reads no `response.failed`
        const found = await read(streamText(asked("break so far")));
        assert.match(found.errors.map((each) => each.message ?? each.error?.message ?? JSON.stringify(each)).join(), /broke off/);
        assert.doesNotMatch(String(found.errors[0]), /Type validation failed/);
    });
}

// -- OpenAI's own

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: token, maxRetries: 0 });
const calendarFunction = { name: "calendar", description: "What is on.", parameters: SCHEMA };
const runs = { type: "function", function: { ...calendarFunction, function: busyOn, parse: JSON.parse } };

await check("openai, chat", async () => {
    const answer = await client.chat.completions.create({ model: MODEL, messages: user("hello") });
    assert.equal(answer.choices[0].message.content, "You said: hello");
    assert.equal(answer.usage.total_tokens, 18);
    const stream = client.chat.completions.stream({ model: MODEL, messages: user(CALENDAR), tools: [{ type: "function", function: calendarFunction }] });
    const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
    assert.deepEqual(JSON.parse(call.function.arguments), { day: "Monday" });
    assert.match(await client.chat.completions.runTools({ model: MODEL, messages: user(BOTH), tools: [runs] }).finalContent(), /busy on Tuesday/);
    assert.match(
        await client.chat.completions.runTools({ model: MODEL, messages: user(BOTH), tools: [runs], stream: true }).finalContent(),
        /rain in Oslo and busy on Monday and busy on Tuesday/,
    );
    const form = { type: "json_schema", json_schema: { name: "place", strict: true, schema: PLACE } };
    const parsed = await client.chat.completions.parse({ model: MODEL, messages: user("where?"), response_format: form });
    assert.deepEqual(JSON.parse(parsed.choices[0].message.content), { city: "Oslo", degrees: 4.5 });
});
await check("openai, responses", async () => {
    const tools = [{ type: "function", strict: false, ...calendarFunction }];
    assert.equal((await client.responses.create({ model: MODEL, input: "hello" })).output_text, "You said: hello");
    assert.equal((await client.responses.stream({ model: MODEL, input: "think hello" }).finalResponse()).output_text, "You said: hello");
    const first = await client.responses.stream({ model: MODEL, input: CALENDAR, tools }).finalResponse();
    const call = first.output.find((item) => item.type === "function_call");
    const result = { type: "function_call_output", call_id: call.call_id, output: busyOn(JSON.parse(call.arguments)) };
    const next = await client.responses.create({ model: MODEL, previous_response_id: first.id, input: [result], tools });
    assert.match(next.output_text, /The tools said: busy on Monday/);
    const text = { format: { type: "json_schema", name: "place", strict: true, schema: PLACE } };
    const parsed = await client.responses.parse({ model: MODEL, input: "where?", text });
    assert.deepEqual(parsed.output_parsed, { city: "Oslo", degrees: 4.5 });
});
await check("openai, errors and models", async () => {
    const ask = (content, using = client, model = MODEL) => using.chat.completions.create({ model, messages: user(content) });
    const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: wrong, maxRetries: 0 });
    assert.ok((await rejects(ask("hello", stranger), 401, /token/)) instanceof OpenAI.AuthenticationError);
    assert.ok((await rejects(ask("hello", client, "openai/gpt-9"), 404, /gpt-9/)) instanceof OpenAI.NotFoundError);
    assert.ok((await rejects(ask("fail rate_limited"), 429, /rate_limited/)) instanceof OpenAI.RateLimitError);
    const broken = await client.chat.completions.create({ model: MODEL, messages: user("break so far"), stream: true });
    await assert.rejects(async () => { for await (const _ of broken); }, /broke off/);
    assert.deepEqual((await client.models.list()).data.map((model) => model.id), ["gpt-4o", MODEL]);
    assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
});

// -- Anthropic's own

const claude = new Anthropic({ baseURL: url, apiKey: token, maxRetries: 0 });
const calendarTool = { name: "calendar", description: "What is on.", input_schema: SCHEMA };
const told = (content, more = {}) => ({ model: MODEL, max_tokens: 500, messages: user(content), ...more });

await check("anthropic, messages", async () => {
    const answer = await claude.messages.create(told("hello"));
    assert.deepEqual(answer.content.map((block) => block.text), ["You said: hello"]);
    const streamed = await claude.messages.stream(told("think hello")).finalMessage();
    assert.deepEqual(streamed.content.map((block) => block.type), ["thinking", "text"]);
    assert.equal(await claude.messages.stream(told("hello")).finalText(), "You said: hello");
    const first = await claude.messages.stream(told(BOTH, { tools: [calendarTool] })).finalMessage();
    assert.equal(first.stop_reason, "tool_use");
    const calls = first.content.filter((block) => block.type === "tool_use");
    const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: busyOn(call.input) }));
    const turns = [...user(BOTH), { role: "assistant", content: first.content }, { role: "user", content: results }];
    const next = await claude.messages.create(told("", { tools: [calendarTool], messages: turns }));
    assert.match(next.content.at(-1).text, /rain in Oslo and busy on Monday and busy on Tuesday/);
    const run = claude.beta.messages.toolRunner(told(BOTH, { tools: [{ ...calendarTool, run: busyOn, parse: (input) => input }] }));
    assert.match((await run).content.at(-1).text, /busy on Tuesday/);
    assert.ok((await claude.messages.countTokens({ model: MODEL, messages: user("hello") })).input_tokens > 0);
});
await check("anthropic, errors and models", async () => {
    const stranger = new Anthropic({ baseURL: url, apiKey: wrong, maxRetries: 0 });
    assert.ok((await rejects(stranger.messages.create(told("hello")), 401, /token/)) instanceof Anthropic.AuthenticationError);
    assert.ok((await rejects(claude.messages.create(told("hello", { model: "openai/gpt-9" })), 404, /gpt-9/)) instanceof Anthropic.NotFoundError);
    assert.ok((await rejects(claude.messages.create(told("fail rate_limited")), 429, /rate_limited/)) instanceof Anthropic.RateLimitError);
    await assert.rejects(claude.messages.stream(told("break so far")).finalMessage(), /broke off/);
    const listed = await claude.models.list();
    assert.deepEqual(listed.data.map((model) => model.id), ["gpt-4o", MODEL]);
    assert.equal((await claude.models.retrieve(MODEL)).id, MODEL);
});

console.log(`Node: ${passed} of ${passed + failed} checks passed`);
process.exit(failed ? 1 : 0);
