// sdk.test.mjs: the openai SDK against weir serve: tiny-k3 for real, and scripted output on the
// null column where the model cannot be told what to say.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import OpenAI from "openai";
import { assertIdle, startServer } from "./server.mjs";

const capital = [{ role: "user", content: "What is the capital of France?" }];
const weather = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather of a city",
    parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "number" } } },
  },
};

async function collect(stream) {
  const answer = { content: "", reasoning: "", calls: [], finish: null, usage: null, chunks: 0 };
  for await (const chunk of stream) {
    answer.chunks++;
    if (chunk.usage) answer.usage = chunk.usage;
    for (const choice of chunk.choices) {
      answer.content += choice.delta.content ?? "";
      answer.reasoning += choice.delta.reasoning_content ?? "";
      for (const call of choice.delta.tool_calls ?? []) {
        answer.calls[call.index] ??= { id: call.id, name: call.function.name, arguments: "" };
        answer.calls[call.index].arguments += call.function.arguments;
      }
      answer.finish = choice.finish_reason ?? answer.finish;
    }
  }
  return answer;
}

describe("tiny-k3", () => {
  let server, client;
  before(async () => {
    server = await startServer();
    client = server.client();
  });
  after(async () => {
    await assertIdle(server);
    await server.stop();
  });

  test("chat answers and thinks", async () => {
    const reply = await client.chat.completions.create({
      model: "tiny-k3", messages: capital, temperature: 0, max_tokens: 200,
    });
    const { message, finish_reason } = reply.choices[0];
    assert.equal(finish_reason, "stop");
    assert.match(message.content, /Paris/);
    assert.ok(message.reasoning_content.length > 0);
    assert.ok(reply.usage.completion_tokens_details.reasoning_tokens > 0);
    assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
  });

  test("the stream equals the whole reply", async () => {
    const body = { model: "tiny-k3", messages: capital, temperature: 0, max_tokens: 200 };
    const reply = await client.chat.completions.create(body);
    const { data, response } = await client.chat.completions
      .create({ ...body, stream: true, stream_options: { include_usage: true } })
      .withResponse();
    assert.ok(response.headers.get("x-request-id"));
    const streamed = await collect(data);
    assert.equal(streamed.content, reply.choices[0].message.content);
    assert.equal(streamed.reasoning, reply.choices[0].message.reasoning_content);
    assert.equal(streamed.finish, reply.choices[0].finish_reason);
    assert.deepEqual(streamed.usage, reply.usage);
    assert.ok(streamed.chunks > 10);
  });

  test("the SDK's stream helper gathers the same message", async () => {
    const body = { model: "tiny-k3", messages: capital, temperature: 0, max_tokens: 200 };
    const reply = await client.chat.completions.create(body);
    const message = await client.chat.completions.stream(body).finalMessage();
    assert.equal(message.content, reply.choices[0].message.content);
  });

  test("completions, echo and logprobs", async () => {
    const reply = await client.completions.create({
      model: "tiny-k3", prompt: "It is a truth universally acknowledged, that", temperature: 0,
      max_tokens: 12, logprobs: 3, echo: true,
    });
    const { text, logprobs } = reply.choices[0];
    assert.ok(text.startsWith("It is a truth universally acknowledged, that the whole world"));
    assert.equal(logprobs.tokens.length, logprobs.token_logprobs.length);
    assert.equal(logprobs.token_logprobs[0], null);
    for (const [i, token] of logprobs.tokens.entries()) {
      assert.ok(text.startsWith(token, logprobs.text_offset[i]), token);
      if (i > 0) {
        const top = logprobs.top_logprobs[i];
        assert.ok(token in top);
        assert.ok(Object.values(top).reduce((sum, v) => sum + Math.exp(v), 0) <= 1.0001);
      }
    }
  });

  test("F041 chat logprobs hold the drawn token and sum to at most one", async () => {
    for (const temperature of [0, 1]) {
      const reply = await client.chat.completions.create({
        model: "tiny-k3", messages: capital, temperature, seed: 3, max_tokens: 100, logprobs: true,
        top_logprobs: 3, reasoning_effort: "none",
      });
      const { logprobs, message } = reply.choices[0];
      assert.equal(logprobs.content.map((e) => e.token).join(""), message.content);
      for (const entry of logprobs.content) {
        assert.equal(entry.top_logprobs.length, 3);
        assert.ok(entry.logprob <= 0);
        assert.ok(entry.top_logprobs.reduce((sum, t) => sum + Math.exp(t.logprob), 0) <= 1.0001);
        if (temperature === 0) assert.equal(entry.token, entry.top_logprobs[0].token);
      }
    }
  });

  test("F039 n choices are reproducible, and equal when greedy", async () => {
    const body = { model: "tiny-k3", messages: capital, n: 4, max_tokens: 40, seed: 7, temperature: 1 };
    const texts = async (more) =>
      (await client.chat.completions.create({ ...body, ...more })).choices.map((c) => {
        return [c.index, c.message.reasoning_content ?? "", c.message.content ?? ""].join("|");
      });
    const first = await texts();
    assert.deepEqual(first.map((t) => t[0]), ["0", "1", "2", "3"]);
    assert.deepEqual(await texts(), first);
    const greedy = (await texts({ temperature: 0 })).map((t) => t.slice(1));
    assert.equal(new Set(greedy).size, 1);
  });

  test("F040 seeds are independent of their neighbours", async () => {
    const ask = async (seed, max_tokens = 30) =>
      (await client.completions.create({
        model: "tiny-k3", prompt: "And the king", max_tokens, temperature: 1,
        ...(seed === null ? {} : { seed }),
      })).choices[0].text;
    const solo = [await ask(1), await ask(2), await ask(3)];
    const together = await Promise.all([ask(1), ask(null), ask(2), ask(null, 5), ask(3), ask(null)]);
    assert.deepEqual([together[0], together[2], together[4]], solo);
  });

  test("bad words never appear", async () => {
    const reply = await client.completions.create({
      model: "tiny-k3", prompt: "It is a truth universally acknowledged, that", temperature: 0,
      max_tokens: 40, bad_words: ["world", "good thing"],
    });
    assert.doesNotMatch(reply.choices[0].text, / world| good thing/);
  });

  test("F031 aborting a stream or a request frees it", async () => {
    const body = { model: "tiny-k3", prompt: "Once", max_tokens: 4000, ignore_eos: true };
    const stream = await client.completions.create({ ...body, stream: true });
    for await (const chunk of stream) {
      assert.ok(chunk.choices[0].text.length > 0);
      break; // the SDK aborts the request
    }
    await assertIdle(server, 5);
    const controller = new AbortController();
    const whole = client.completions.create(body, { signal: controller.signal });
    setTimeout(() => controller.abort(), 100);
    await assert.rejects(whole, OpenAI.APIUserAbortError);
    await assertIdle(server, 5);
  });

  test("a named request can be ended from another connection", async () => {
    const { data, response } = await client.completions
      .create({ model: "tiny-k3", prompt: "Once", max_tokens: 7000, ignore_eos: true, stream: true })
      .withResponse();
    const request_id = response.headers.get("x-request-id");
    let finish = null;
    for await (const chunk of data) {
      if (finish === null) {
        const reply = await fetch(`${server.url}/abort_request`, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify({ request_id }),
        });
        assert.equal(reply.status, 200);
        finish = "asked";
      }
      finish = chunk.choices[0]?.finish_reason ?? finish;
    }
    assert.equal(finish, "abort");
    await assertIdle(server, 5);
  });

  test("masks that leave no token end this request alone", async () => {
    const tokens = (await (await fetch(`${server.url}/tokenize`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ prompt: " world" }),
    })).json()).tokens;
    assert.equal(tokens.length, 1);
    const body = { model: "tiny-k3", prompt: "The whole", max_tokens: 4, allowed_token_ids: tokens };
    const [masked, good] = await Promise.allSettled([
      client.completions.create({ ...body, bad_words: ["world"] }),
      client.completions.create(body),
    ]);
    assert.equal(masked.status, "rejected");
    assert.equal(masked.reason.status, 500);
    assert.match(masked.reason.message, /no valid token/);
    assert.equal(good.value.choices[0].text, " world world world world");
  });

  test("prompt logprobs name every prompt token", async () => {
    const reply = await client.chat.completions.create({
      model: "tiny-k3", messages: capital, max_tokens: 2, prompt_logprobs: 2, return_token_ids: true,
    });
    const { prompt_logprobs, prompt_token_ids } = reply;
    assert.equal(prompt_logprobs.length, reply.usage.prompt_tokens);
    assert.equal(prompt_logprobs[0], null);
    for (const [i, entry] of prompt_logprobs.entries()) {
      if (i === 0) continue;
      const own = entry[prompt_token_ids[i]];
      assert.ok(own.logprob <= 0 && own.rank >= 1, `token ${i}`);
      assert.ok(Object.keys(entry).length <= 3);
    }
  });

  test("a time limit ends the request with 504", async () => {
    const body = { model: "tiny-k3", prompt: "Once", max_tokens: 7000, ignore_eos: true, timeout: 0.2 };
    await assert.rejects(client.completions.create(body), (e) => e.status === 504);
    const stream = await client.completions.create({ ...body, stream: true });
    await assert.rejects(collectText(stream), OpenAI.APIError);
    await assertIdle(server, 5);
  });

  test("errors are of the SDK's classes and name the field", async () => {
    const bad = (body, type, param) =>
      assert.rejects(client.chat.completions.create({ model: "tiny-k3", messages: capital, ...body }),
        (e) => e instanceof type && e.param === param && !!e.requestID);
    await bad({ temperature: 3 }, OpenAI.BadRequestError, "temperature");
    await bad({ temperature: 3, stream: true }, OpenAI.BadRequestError, "temperature");
    await bad({ messages: [] }, OpenAI.BadRequestError, "messages");
    await bad({ model: "gpt-4" }, OpenAI.NotFoundError, "model");
    await bad({ tools: [{ ...weather, function: { ...weather.function, strict: true } }] },
      OpenAI.InternalServerError, "tools.0.function.strict");
    const reply = await client.chat.completions.create({
      model: "tiny-k3", messages: capital, max_tokens: 2,
    });
    assert.equal(reply.choices[0].finish_reason, "length");
  });

  test("models are listed", async () => {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.deepEqual(ids, ["tiny-k3"]);
  });
});

async function collectText(stream) {
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.text ?? "";
  return text;
}

describe("scripted output", () => {
  let server, client;
  before(async () => {
    server = await startServer("--compute", "null");
    client = server.client();
  });
  after(async () => {
    await assertIdle(server);
    await server.stop();
  });

  const encode = async (text) => {
    const reply = await fetch(`${server.url}/tokenize`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ prompt: text, parse_special: true }),
    });
    return (await reply.json()).tokens;
  };
  const close = (tag) => `<|close|>${tag}<|sep|>`;
  const open = (tag) => `<|open|>${tag}<|sep|>`;
  const argument = (key, type, value) =>
    open(`argument key="${key}" type="${type}"`) + value + close("argument");
  const calls =
    "I look it up." + close("think") + open("response") + close("response") + open("tools") +
    open('call tool="weather" index="1"') + argument("city", "string", 'Os"lo\n') +
    argument("days", "number", "2") + close("call") +
    open('call tool="weather" index="2"') + argument("city", "string", "東京") + close("call") +
    close("tools") + close("message") + "<|end_of_msg|>";

  test("tool calls, whole, streamed and through the helper", async () => {
    const body = {
      model: "tiny-k3", messages: capital, tools: [weather], weir_output_ids: await encode(calls),
      max_tokens: 2000,
    };
    const expected = ['{"city":"Os\\"lo\\n","days":2}', '{"city":"東京"}'];
    const reply = await client.chat.completions.create(body);
    assert.equal(reply.choices[0].finish_reason, "tool_calls");
    assert.equal(reply.choices[0].message.content, null);
    const whole = reply.choices[0].message.tool_calls;
    assert.deepEqual(whole.map((c) => c.function.arguments), expected);
    for (const size of [1, 3, 1000]) {
      const streamed = await collect(await client.chat.completions.create({
        ...body, stream: true, weir_step_sizes: Array(2000).fill(size),
      }));
      assert.deepEqual(streamed.calls.map((c) => c.arguments), expected);
      assert.equal(streamed.finish, "tool_calls");
      assert.equal(streamed.reasoning, "I look it up.");
    }
    const message = await client.chat.completions.stream(body).finalMessage();
    assert.deepEqual(message.tool_calls.map((c) => c.function.arguments), expected);
  });

  test("a conversation with results goes on", async () => {
    const ids = await encode("So." + close("think") + open("response") + "Cold." + close("response") +
      close("message") + "<|end_of_msg|>");
    const first = await client.chat.completions.create({
      model: "tiny-k3", messages: capital, tools: [weather], weir_output_ids: await encode(calls),
      max_tokens: 2000,
    });
    const message = first.choices[0].message;
    const results = message.tool_calls.map((c) => ({
      role: "tool", tool_call_id: c.id, content: "-3",
    }));
    const next = await client.chat.completions.create({
      model: "tiny-k3", messages: [...capital, message, ...results.reverse()], tools: [weather],
      weir_output_ids: ids, max_tokens: 2000,
    });
    assert.equal(next.choices[0].message.content, "Cold.");
  });
});
