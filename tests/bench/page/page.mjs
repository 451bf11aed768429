// Opens a report in headless Chromium: nothing in the console, nothing from the network, figures as in the runs' files, toggles,
// tips, keyboard, downloads, print, phone, no script. Usage: node page.mjs FOLDER [folder for screenshots]
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const require = createRequire(new URL('../../../web/package.json', import.meta.url));
const { chromium } = require('playwright-core');

const folder = process.argv[2], shots = process.argv[3];
if (shots) mkdirSync(shots, { recursive: true });
const url = `file://${join(folder, 'report.html')}`;
const aggregate = (run) => JSON.parse(readFileSync(join(folder, 'sweep', run, 'inferencex.json'), 'utf8'));

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'],
});
let passed = 0, failed = 0;

async function check(name, { expected, ...options }, run) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, ...options });
  const page = await context.newPage();
  const errors = [], requests = [];
  page.on('pageerror', (e) => errors.push(String(e)));
  page.on('console', (m) => { if (!expected?.test(m.text())) errors.push(m.text()); });
  page.on('request', (r) => { if (r.url() !== url && !/^(data|blob):/.test(r.url())) requests.push(r.url()); });
  try {
    await page.goto(url);
    await run(page);
    assert.deepEqual(errors, [], 'lines in the console');
    assert.deepEqual(requests, [], 'requests');
    passed++;
    console.log(`ok ${name}`);
  } catch (error) {
    failed++;
    console.log(`not ok ${name}: ${error.stack}`);
  }
  await context.close();
}

const shot = async (page, name) => { if (shots) await page.screenshot({ path: `${shots}/${name}.png`, fullPage: true }); };
const row = (page, name) => page.locator('#s-runs tbody tr').filter({ has: page.getByRole('rowheader', { name, exact: true }) });
const background = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

await check('the table has the figures of the runs', {}, async (page) => {
  await shot(page, 'light');
  for (const [run, name] of [['on-4', 'cache on @ 4'], ['drafts-8', 'drafts 3 @ 8'], ['on-16-again', null]]) {
    const { request_metrics: m } = aggregate(run);
    const rows = name ? row(page, name) : page.locator('#s-runs tbody tr').filter({ hasText: 'cache on @ 16 #' });
    const cells = await rows.evaluateAll((list) => list.map((r) => [...r.querySelectorAll('td[data-v]')].map((c) => Number(c.dataset.v))));
    const near = (a, b) => Math.abs(a - b) <= 1e-5 * Math.abs(b);
    const fits = cells.some((c) => near(c[0], m.throughput.per_gpu.total_tput_tps) && near(c[3], m.latency.intvty.p90) && near(c[5], m.latency.ttft.p90));
    assert.ok(fits, `${run}: ${JSON.stringify(cells)}`);
  }
});

await check('what came from a run is text, and what must not be compared says so', {}, async (page) => {
  assert.equal(await page.locator('img').count(), 0);
  assert.equal(await page.title(), 'Invented <sweep>');
  assert.match(await page.locator('.banner').innerText(), /3 of 13 runs/);
  assert.match(await row(page, 'drafts 3 @ 32').innerText(), /scaled, not comparable/);
  assert.match(await page.locator('#s-validity').innerText(), /failed_request_rate/);
});

await check('injected script and style are not run', { expected: /violates the following Content Security Policy/ }, async (page) => {
  await page.evaluate(() => { // a hole in an escape would look like this
    const s = document.createElement('script');
    s.textContent = 'window.broken = true';
    document.body.append(s);
    const p = document.createElement('p');
    p.setAttribute('style', 'color: rgb(1, 2, 3)');
    p.id = 'painted';
    document.body.append(p);
  });
  assert.equal(await page.evaluate(() => window.broken), undefined);
  assert.notEqual(await page.evaluate(() => getComputedStyle(document.getElementById('painted')).color), 'rgb(1, 2, 3)');
});

await check('the theme follows the system and the button', { colorScheme: 'dark' }, async (page) => {
  const dark = await background(page);
  await shot(page, 'dark');
  const button = page.getByRole('button', { name: /Theme/ });
  assert.match(await button.innerText(), /auto/);
  await button.click();
  const light = await background(page);
  assert.notEqual(light, dark);
  assert.equal(light, 'rgb(255, 255, 255)');
  await button.click();
  assert.equal(await background(page), dark);
  await page.reload();
  assert.match(await page.getByRole('button', { name: /Theme/ }).innerText(), /dark/);
});

await check('runs can be chosen for the distributions', {}, async (page) => {
  const lines = page.locator('#s-latency [data-point="0"]');
  const shown = () => page.locator('#s-latency svg[data-plot] path.line:not(.off)').count();
  assert.equal(await lines.count(), 3);
  assert.equal(await shown(), 3 * 6);
  await page.getByRole('button', { name: 'none' }).click();
  assert.equal(await shown(), 0);
  await page.getByRole('checkbox', { name: 'cache on @ 4', exact: true }).check();
  assert.equal(await shown(), 3);
  await page.getByRole('button', { name: 'all' }).click();
  assert.equal(await shown(), 3 * 13);
});

await check('marks tell what they are to the pointer and to the keyboard', {}, async (page) => {
  const tip = page.locator('#tip');
  const mark = page.locator('.hero svg.large .mark').first();
  await mark.scrollIntoViewIfNeeded();
  await mark.hover();
  assert.match(await tip.innerText(), /tok\/s\/GPU, P90 interactivity/);
  await page.keyboard.press('Escape');
  assert.ok(await tip.isHidden());
  await mark.focus();
  assert.equal(await tip.innerText(), await mark.getAttribute('aria-label'));
  await page.keyboard.press('Tab');
  assert.equal(await tip.innerText(), await page.locator('.hero svg.large .mark').nth(1).getAttribute('aria-label'));
});

await check('the value of each line stands under the pointer', {}, async (page) => {
  const svg = page.locator('#s-latency svg[data-plot]').first();
  await svg.scrollIntoViewIfNeeded();
  const box = await svg.boundingBox();
  await page.mouse.move(box.x + box.width * 0.6, box.y + box.height * 0.5);
  const lines = (await page.locator('#tip').innerText()).split('\n');
  assert.equal(lines.length, 1 + 6);
  assert.match(lines[0], /^[\d.]+ m?s$/);
  // What it says is near what the percentiles say: the P50 of a run is where its curve crosses one half.
  const data = JSON.parse(await page.evaluate(() => atob(document.getElementById('get-json').href.split(',')[1])));
  const seconds = lines[0].endsWith('ms') ? parseFloat(lines[0]) / 1e3 : parseFloat(lines[0]);
  for (const line of lines.slice(1)) {
    const [, name, share] = /^(.*): ([\d.]+) %$/.exec(line);
    const run = data.runs.find((r) => r.name === name);
    const q = run.quantiles_seconds.ttft;
    const i = q.findIndex((v) => v > seconds);
    const truth = i < 0 ? 100 : i === 0 ? 0 : data.quantile_percent[i];
    assert.ok(Math.abs(truth - Number(share)) < 4, `${line}, by the quantiles ${truth}`);
  }
});

await check('numbers can be downloaded', { acceptDownloads: true }, async (page) => {
  for (const [name, file] of [['Numbers as JSON', 'weir-report.json'], ['Numbers as CSV', 'weir-report.csv']]) {
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name }).click()]);
    assert.equal(download.suggestedFilename(), file);
    const text = readFileSync(await download.path(), 'utf8');
    if (file.endsWith('json')) {
      const run = JSON.parse(text).runs.find((r) => r.dir.endsWith('/on-8'));
      const { request_metrics: m } = aggregate('on-8');
      assert.equal(run.row.tput_per_gpu, m.throughput.per_gpu.total_tput_tps);
      assert.equal(run.row.p90_ttft, m.latency.ttft.p90);
      assert.equal(run.timeline.in_flight.length, run.timeline.errors.length);
    } else {
      assert.equal(text.trim().split('\r\n').length, 14);
    }
  }
});

await check('numbers of any size can be downloaded', { acceptDownloads: true }, async (page) => {
  await page.evaluate(() => document.getElementById('get-csv').setAttribute('href', `data:text/csv;base64,${btoa('x'.repeat(9e6))}`));
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'Numbers as CSV' }).click()]);
  assert.equal(readFileSync(await download.path()).length, 9e6);
});

await check('numbers can be downloaded without script', { acceptDownloads: true, javaScriptEnabled: false }, async (page) => {
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'Numbers as JSON' }).click()]);
  assert.equal(JSON.parse(readFileSync(await download.path(), 'utf8')).runs.length, 13);
});

await check('timelines open one by one', {}, async (page) => {
  const second = page.locator('details.timeline').nth(1);
  assert.equal(await second.locator('svg').first().isVisible(), false);
  await second.locator('summary').focus();
  await page.keyboard.press('Enter');
  assert.ok(await second.locator('svg').first().isVisible());
});

await check('a label of any length leaves the figures in sight', { viewport: { width: 390, height: 800 } }, async (page) => {
  const cell = page.locator('#s-runs tbody th').first();
  await cell.evaluate((c) => { c.lastChild.textContent = 'x'.repeat(300); });
  assert.ok((await cell.boundingBox()).width <= 390 * 0.6);
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
});

for (const width of [420, 390, 320])
  await check(`no state is broken within a word at ${width} pixels`, { viewport: { width, height: 800 } }, async (page) => {
    const broken = await page.locator('#s-runs td span').evaluateAll((spans) => spans.flatMap((span) => {
      const text = span.firstChild;
      return [...text.data.matchAll(/\S+/g)].filter((word) => {
        const range = document.createRange();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        return range.getClientRects().length > 1;
      }).map((word) => word[0]);
    }));
    assert.deepEqual(broken, []);
  });

for (const width of [390, 320])
  await check(`a phone of ${width} pixels sees the page without scrolling sideways`, { viewport: { width, height: 800 }, isMobile: true, hasTouch: true }, async (page) => {
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
    assert.ok(await page.locator('.hero svg.small').isVisible());
    assert.equal(await page.locator('.hero svg.large').isVisible(), false);
    await shot(page, `phone-${width}`);
  });

await check('without script everything is there to read', { javaScriptEnabled: false }, async (page) => {
  assert.ok(await page.locator('.hero svg.large').isVisible());
  assert.equal(await page.locator('#s-runs tbody tr').count(), 13);
  assert.equal(await page.getByRole('button', { name: /Theme/ }).count(), 0);
  assert.equal(await page.locator('#choice input').first().isVisible(), false);
  assert.equal(await page.locator('.hero svg.large .mark > title').count() > 0, true);
});

await check('print is light, whole and without controls', { colorScheme: 'dark' }, async (page) => {
  await page.emulateMedia({ media: 'print', colorScheme: 'dark' });
  assert.equal(await background(page), 'rgb(255, 255, 255)');
  assert.equal(await page.getByRole('link', { name: 'Numbers as CSV' }).isVisible(), false);
  const pdf = await page.pdf({ format: 'A4' });
  const pages = pdf.toString('latin1').match(/\/Type\s*\/Page\b/g).length;
  assert.ok(pages >= 4 && pages <= 14, `${pages} pages`);
});

await browser.close();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed || !passed ? 1 : 0);
