// Drives the page in headless Chromium against a running server: type, stream, stop, reload, settings, dashboard, phone, hostile
// markdown. Usage: node browser.mjs URL [folder for screenshots]
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';

const require = createRequire(new URL('../../web/package.json', import.meta.url));
const { chromium } = require('playwright-core');

const url = process.argv[2];
const shots = process.argv[3];
if (shots) mkdirSync(shots, { recursive: true });

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'],
});
let passed = 0, failed = 0;
const problems = [];

async function check(name, options, run) {
  const context = await browser.newContext({ viewport: { width: 1100, height: 760 }, ...options });
  const page = await context.newPage();
  const errors = [];
  page.on('pageerror', (e) => errors.push(String(e)));
  page.on('console', (m) => m.type() === 'error' && !expected.test(m.text()) && errors.push(m.text()));
  try {
    await page.goto(url);
    await page.getByLabel('Message').waitFor();
    await page.waitForFunction(() => document.querySelector('.model').textContent !== '');
    await run(page);
    assert.deepEqual(errors, [], 'errors in the console');
    passed++;
    console.log(`ok ${name}`);
  } catch (error) {
    failed++;
    problems.push(name);
    console.log(`not ok ${name}: ${error.stack}`);
    if (shots) await page.screenshot({ path: `${shots}/failed-${failed}.png` });
  }
  // A request on its way through a handler of the test must not outlive the page.
  await page.unrouteAll({ behavior: 'ignoreErrors' });
  await context.close();
}

// Console lines that are no fault: refused requests; and Chromium telling that the sanitiser's own inert document holds handlers
// which the policy would not run.
const expected = /status of (4|5)\d\d|^Executing inline event handler violates/;

const shot = async (page, name) => { if (shots) await page.screenshot({ path: `${shots}/${name}.png` }); };
const settle = (page) => page.waitForFunction(() => document.querySelector('.assistant') && !document.querySelector('.assistant[aria-busy=true]'), null, { timeout: 60000 });

async function ask(page, text) {
  await page.getByLabel('Message').fill(text);
  await page.getByRole('button', { name: 'Send' }).click();
}

async function set(page, values) {
  await page.getByRole('button', { name: 'Settings' }).click();
  for (const [label, value] of Object.entries(values)) await page.getByLabel(label, { exact: true }).fill(value);
  await page.getByRole('button', { name: 'Settings' }).click();
}

// Answers the next chat request by hand, with these deltas.
const script = (page, deltas) => page.route('**/v1/chat/completions', (route) => {
  const chunk = (delta, finish) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: finish ?? null }] })}\n\n`;
  route.fulfill({
    contentType: 'text/event-stream',
    body: deltas.map((d) => chunk(d)).join('') + chunk({}, 'stop') + 'data: [DONE]\n\n',
  });
});

await check('a question is answered, thinking folded, and the chat survives a reload', {}, async (page) => {
  await set(page, { Temperature: '0' });
  await ask(page, 'What is the capital of France?');
  await settle(page);
  const answer = await page.locator('.assistant .markdown').innerText();
  assert.match(answer, /Paris/);
  assert.equal(await page.locator('.reasoning[open]').count(), 0);
  await page.locator('.reasoning summary').click();
  assert.match(await page.locator('.reasoning div').innerText(), /France/);
  assert.match(await page.locator('.stats').innerText(), /\d+ tokens/);
  await ask(page, 'What is the capital of Norway?');
  await settle(page);
  await page.waitForTimeout(400);
  await shot(page, 'chat');
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll('.assistant').length === 2);
  assert.equal(await page.locator('.assistant .markdown').first().innerText(), answer);
  await page.getByRole('button', { name: 'New chat' }).click();
  assert.equal(await page.locator('.turn').count(), 0);
});

await check('the answer grows while it streams, and Stop ends it at once', {}, async (page) => {
  // With markers and end tokens forbidden the answer goes on to its length limit.
  const never = Object.fromEntries([2561, 2562, 2563, 2564, 2565].map((id) => [id, -100]));
  await page.route('**/v1/chat/completions', (route) => {
    const body = { ...route.request().postDataJSON(), logit_bias: never, max_tokens: 6000, temperature: 0.7 };
    route.continue({ postData: JSON.stringify(body) });
  });
  await ask(page, 'Write about the sea.');
  const size = () => page.evaluate(() => document.querySelector('.assistant')?.textContent.length ?? 0);
  await page.waitForFunction(() => (document.querySelector('.assistant')?.textContent.length ?? 0) > 30);
  const early = await size();
  await page.waitForFunction((n) => document.querySelector('.assistant').textContent.length > n + 50, early);
  await page.getByRole('button', { name: 'Stop' }).click();
  await page.getByText('Stopped.').waitFor();
  const stopped = await size();
  await page.waitForTimeout(500);
  assert.equal(await size(), stopped);
  await page.unroute('**/v1/chat/completions');
  await ask(page, 'Hello!');
  await settle(page);
});

await check('hostile markdown neither runs nor loads anything', {}, async (page) => {
  const requests = [];
  page.on('request', (r) => requests.push(r.url()));
  await script(page, [
    { reasoning_content: '<img src=x onerror="window.ran=1">' },
    { content: '<script>window.ran=1</script><img src="http://127.0.0.1:9/x" onerror="window.ran=1">' },
    { content: '<a href="javascript:window.ran=1">link</a> [x](javascript:window.ran=1) <svg onload="window.ran=1">' },
    { content: '\n\n```js\nconst a = "<b>";\n```\n' },
  ]);
  await ask(page, 'anything');
  await settle(page);
  for (const link of await page.locator('.markdown a').all()) await link.click({ timeout: 500 }).catch(() => {});
  assert.equal(await page.evaluate(() => window.ran), undefined);
  assert.equal(await page.locator('.markdown script, .markdown img, .markdown [onerror], .markdown [onload], .markdown a[href^=javascript]').count(), 0);
  assert.deepEqual(requests.filter((u) => !u.startsWith(url)), []);
  assert.equal(await page.locator('.markdown pre .hljs-keyword').innerText(), 'const');
  await shot(page, 'code');
});

await check('tool calls are shown, and errors are told', {}, async (page) => {
  await script(page, [
    { tool_calls: [{ index: 0, id: 'c1', type: 'function', function: { name: 'weather', arguments: '' } }] },
    { tool_calls: [{ index: 0, function: { arguments: '{"city":"Oslo"}' } }] },
  ]);
  await ask(page, 'Weather?');
  await settle(page);
  assert.match(await page.locator('.call').innerText(), /weather[\s\S]*Oslo/);
  await page.unroute('**/v1/chat/completions');
  await set(page, { 'Max tokens': '99999999' });
  await ask(page, 'Hello!');
  await page.locator('.note.failed').waitFor();
  assert.match(await page.locator('.note.failed').innerText(), /max_tokens/);
});

// Figures of the dashboard by their label, without what stands behind a comma.
const figures = (page) => page.locator('.figure').evaluateAll((all) => Object.fromEntries(all.map((f) => [f.lastChild.textContent.split(',')[0], f.firstChild.textContent])));
const scrape = async () => (await fetch(`${url}/metrics`)).text();
const metric = (text, name) => [...text.matchAll(new RegExp(`^${name}\\{[^}]*\\} (\\S+)$`, 'gm'))].reduce((sum, m) => sum + Number(m[1]), 0);

await check('the dashboard shows live figures', {}, async (page) => {
  await ask(page, 'Write one sentence about Alice and a fox.');
  await page.getByRole('button', { name: 'Dashboard' }).click();
  await page.waitForFunction(() => [...document.querySelectorAll('.figure')].every((f) => f.querySelector('b').textContent !== '') &&
    document.querySelectorAll('.dashboard canvas').length === 7);
  await page.waitForTimeout(2500);
  const text = await scrape();
  for (const name of ['vllm:num_requests_running', 'weir_state_slots_used', 'weir_state_slots', 'weir_kv_pages_cached',
    'vllm:time_to_first_token_seconds_bucket', 'vllm:inter_token_latency_seconds_bucket', 'vllm:generation_tokens_total',
    'weir_prompt_tokens_by_source_total', 'weir_stateless_tokens_total', 'weir_checkpoints_stored_total'])
    assert.ok(text.includes(`\n${name}{`), `${name} is what the page asks for`);
  assert.match((await figures(page)).running, /^\d/);
});

// A prompt of several pages, sent beside the page so that the dashboard stays in sight.
async function chat(text) {
  const reply = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST', headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ messages: [{ role: 'user', content: text }], max_tokens: 24, temperature: 0 }),
  });
  assert.equal(reply.status, 200);
  return (await reply.json()).usage;
}

await check('the same chat again shows cached tokens', { viewport: { width: 1100, height: 960 } }, async (page) => {
  await page.getByRole('button', { name: 'Dashboard' }).click();
  await page.waitForTimeout(1500);
  assert.match(await page.locator('figure', { hasText: 'Time to first token' }).locator('.plot').getAttribute('data-empty'), /No request/);
  await shot(page, 'dashboard-before');
  const text = 'The river runs past the mill, and the weir holds it back. '.repeat(30);
  const before = metric(await scrape(), 'vllm:prefix_cache_hits_total');
  const once = await chat(text);
  await page.waitForTimeout(2200);
  const again = await chat(text);
  await page.waitForTimeout(2200);
  // The first may find the opening that it shares with the chats of other checks, and no more.
  const [first, second] = [once, again].map((u) => u.prompt_tokens_details.cached_tokens);
  assert.ok(first <= 64 && second > once.prompt_tokens / 2, `${first}, then ${second} of ${once.prompt_tokens} tokens cached`);
  assert.equal(metric(await scrape(), 'vllm:prefix_cache_hits_total') - before, first + second);
  // Both prompts lie in what the page has seen.
  const share = parseFloat((await figures(page))['hit rate']);
  assert.ok(Math.abs(share - (100 * (first + second)) / (2 * again.prompt_tokens)) < 1, `the page says ${share} %`);
  assert.match(await page.locator('.states').innerText(), /end of prompt\s+\d/);
  assert.match(await page.locator('figure', { hasText: 'History pages' }).innerText(), /\d+ in use, \d+ cached, \d+ free/);
  assert.match(await page.locator('.tiers').innerText(), /None is open/);
  // The stack is painted in the device's colour somewhere.
  const painted = await page.locator('figure', { hasText: 'Where prompt tokens' }).locator('canvas').evaluate((canvas) => {
    const want = getComputedStyle(document.documentElement).getPropertyValue('--from-device').trim();
    const rgb = [1, 3, 5].map((i) => parseInt(want.slice(i, i + 2), 16));
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let n = 0;
    for (let i = 0; i < data.length; i += 4) n += rgb.every((c, k) => data[i + k] === c);
    return n;
  });
  assert.ok(painted > 100, `${painted} points in the colour of the device`);
  await shot(page, 'dashboard');
});

// The tiers' lines by hand: what a server with three of them would tell, one of them down, growing with each scrape.
async function tiers(page) {
  let n = 0;
  await page.route('**/metrics', async (route) => {
    const reply = await route.fetch();
    n++;
    const tier = (name, up, used, limit, mb, failed) => `
weir_tier_up{tier="${name}"} ${up}
weir_tier_used_bytes{tier="${name}"} ${used}
${limit ? `weir_tier_limit_bytes{tier="${name}"} ${limit}` : ''}
weir_tier_moves_total{tier="${name}",task="load",result="ok"} ${n}
weir_tier_moves_total{tier="${name}",task="load",result="failed"} ${failed}
weir_tier_moves_total{tier="${name}",task="store",result="damaged"} 0
weir_tier_moved_bytes_total{tier="${name}",task="load"} ${n * mb * 1e6}
weir_tier_moved_bytes_total{tier="${name}",task="store"} ${n * mb * 2e6}
weir_tier_move_seconds_total{tier="${name}",task="load"} ${n}
weir_tier_move_seconds_total{tier="${name}",task="store"} ${n}
`;
    const from = (source, v) => `weir_prompt_tokens_by_source_total{source="${source}"} ${n * v}\n`;
    const own = (await reply.text()).replace(/^weir_(prompt_tokens_by_source|stateless_tokens)_total.*\n/gm, '');
    await route.fulfill({ contentType: 'text/plain', body: own + tier('host', 1, 3 * 2 ** 30, 4 * 2 ** 30, 5200, 0) +
      tier('disk', 1, 2 ** 39, 2 ** 40, 1800, 0) + tier('remote', 0, 7 * 2 ** 20, 0, 0, 12) +
      from('device', 900) + from('host', 300 + 200 * Math.sin(n)) + from('disk', 200) + from('remote', 50) + from('computed', 400) +
      `weir_stateless_tokens_total ${n * 150}\n` });
  });
}

await check('each open tier has a line: down, bytes, bandwidth, failures', { viewport: { width: 1100, height: 960 } }, async (page) => {
  await tiers(page);
  await page.getByRole('button', { name: 'Dashboard' }).click();
  await page.waitForFunction(() => /GB\/s/.test(document.querySelector('.tiers').innerText));
  const lines = (await page.locator('.tier').allInnerTexts()).map((t) => t.replace(/\s+/g, ' '));
  assert.equal(lines[0], 'host up 3.0 GiB of 4.0 GiB load 5.2 GB/s store 10.4 GB/s 0 failed');
  assert.equal(lines[1], 'disk up 512 GiB of 1.0 TiB load 1.8 GB/s store 3.6 GB/s 0 failed');
  assert.equal(lines[2], 'remote down 7.0 MiB load – store – 12 failed');
  await page.waitForTimeout(4000);
  await shot(page, 'tiers');
});

await check('light and dark differ, and the choice is kept', { colorScheme: 'dark' }, async (page) => {
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await paper();
  await tiers(page);
  await page.getByRole('button', { name: 'Dashboard' }).click();
  await page.waitForTimeout(5200);
  await shot(page, 'dark');
  await page.getByRole('button', { name: /Colours/ }).click();
  // The page takes the choice up after it has painted, so the colour is waited for.
  await page.waitForFunction((was) => getComputedStyle(document.body).backgroundColor !== was, dark, { timeout: 5000 });
  const light = await paper();
  await page.reload();
  await page.waitForFunction((want) => getComputedStyle(document.body).backgroundColor === want, light, { timeout: 5000 });
});

await check('a phone sees the whole page without scrolling sideways', { viewport: { width: 360, height: 640 }, isMobile: true, hasTouch: true }, async (page) => {
  await ask(page, 'What is the capital of France?');
  await settle(page);
  await page.getByRole('button', { name: 'Settings' }).click();
  await shot(page, 'phone');
  const fits = () => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
  assert.ok(await fits(), 'the chat is wider than the screen');
  await tiers(page);
  await page.getByRole('button', { name: 'Dashboard', exact: true }).click();
  await page.waitForFunction(() => document.querySelectorAll('.tier').length === 3);
  assert.ok(await fits(), 'the dashboard is wider than the screen');
  await page.waitForTimeout(3200);
  await shot(page, 'phone-dashboard');
  await page.locator('.tiers').scrollIntoViewIfNeeded();
  await shot(page, 'phone-tiers');
});

await browser.close();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed || !passed ? 1 : 0);
