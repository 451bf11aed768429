// soak.mjs: CLIENTS concurrent streaming clients of the openai SDK for SECONDS, some of which hang
// up at a random moment. Every stream that ends has the text of its solo run at temperature 0; at
// the end nothing runs, both pools are empty and memory has not grown.
//
// usage: node soak.mjs [--seconds 60] [--clients 64] [--seed N]
import { parseArgs } from "node:util";
import { assertIdle, startServer } from "./server.mjs";

const { values } = parseArgs({
  options: {
    seconds: { type: "string", default: "60" },
    clients: { type: "string", default: "64" },
    seed: { type: "string", default: String(Date.now() % 1e6) },
  },
});
const seconds = Number(values.seconds), clients = Number(values.clients);

// A small generator, so that a failure can be repeated from its seed.
let state = Number(values.seed) >>> 0;
function random() {
  state = (state + 0x6d2b79f5) >>> 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
}

const prompts = [
  "What is the capital of France?", "What is the capital of Italy?", "What is two and three?",
  "Write one sentence about Alice and a fox.", "Please repeat these words: ship, bear, candle, owl.",
  "Who are you?", "What colour is the sky?", "Count to five.",
];
const bodies = prompts.flatMap((content, i) => [
  { messages: [{ role: "user", content }], max_tokens: 60 + 10 * i },
  { messages: [{ role: "system", content: "Be brief." }, { role: "user", content }],
    max_tokens: 40, reasoning_effort: "none" },
]);

async function read(stream, hangUpAfter) {
  let text = "", chunks = 0, finish = null;
  for await (const chunk of stream) {
    const choice = chunk.choices[0];
    text += (choice.delta.reasoning_content ?? "") + (choice.delta.content ?? "");
    finish = choice.finish_reason ?? finish;
    if (++chunks === hangUpAfter) {
      stream.controller.abort();
      return null;
    }
  }
  if (finish === null) throw new Error("stream ended without a finish_reason");
  return `${finish}: ${text}`;
}

const server = await startServer();
const client = server.client();
const ask = async (body, hangUpAfter) =>
  read(await client.chat.completions.create({ model: "tiny-k3", temperature: 0, stream: true, ...body }),
    hangUpAfter);

const solo = [];
for (const body of bodies) solo.push(await ask(body));

const end = Date.now() + seconds * 1000;
let completed = 0, hungUp = 0;
const failures = [];
let rssEarly = 0;
const warm = setTimeout(() => (rssEarly = server.rssKib()), seconds * 250);

async function clientLoop() {
  while (Date.now() < end && failures.length === 0) {
    const which = Math.floor(random() * bodies.length);
    const hangUpAfter = random() < 0.3 ? 1 + Math.floor(random() * 30) : 0;
    try {
      const text = await ask(bodies[which], hangUpAfter);
      if (text === null) {
        hungUp++;
      } else {
        completed++;
        if (text !== solo[which])
          failures.push(`request ${which}: '${text}' is not '${solo[which]}'`);
      }
    } catch (e) {
      failures.push(String(e));
    }
  }
}

await Promise.all(Array.from({ length: clients }, clientLoop));
clearTimeout(warm);
try {
  await assertIdle(server);
} catch (e) {
  failures.push(e.message);
}
const rssLate = server.rssKib();
const growth = rssEarly ? rssLate / rssEarly - 1 : 0;
// A quarter of a minute fills every pool and buffer; what grows by more than a tenth after it leaks.
// A short run has seen too little by then.
if (growth > (seconds >= 60 ? 0.1 : 1)) failures.push(`resident memory grew from ${rssEarly} to ${rssLate} KiB`);
if (completed === 0 || (seconds >= 5 && hungUp === 0)) failures.push("too few requests");
try {
  await server.stop();
} catch (e) {
  failures.push(e.message);
}

console.log(`${clients} clients, ${seconds} s, seed ${values.seed}: ${completed} streams equal to ` +
  `their solo runs, ${hungUp} hung up, memory ${rssEarly} -> ${rssLate} KiB`);
for (const failure of failures.slice(0, 10)) console.error(`failed: ${failure}`);
console.log(failures.length === 0 ? "1 passed, 0 failed" : "0 passed, 1 failed");
process.exit(failures.length === 0 ? 0 : 1);
