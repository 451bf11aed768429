import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parse, quantile, sample, total } from '../src/metrics.js';

const scrape = (a, b, all, tokens) => parse(`# HELP x y
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",model_name="a\\"b",le="0.1"} ${a}
vllm:time_to_first_token_seconds_bucket{engine="0",model_name="a\\"b",le="0.2"} ${b}
vllm:time_to_first_token_seconds_bucket{engine="0",model_name="a\\"b",le="+Inf"} ${all}
vllm:generation_tokens_total{engine="0"} ${tokens}
vllm:num_requests_running 3
`);

test('labels with quotes and infinities are read', () => {
  const s = scrape(1, 2, 3, 4);
  assert.equal(s.get('vllm:time_to_first_token_seconds_bucket')[0].labels.model_name, 'a\\"b');
  assert.equal(total(s, 'vllm:num_requests_running'), 3);
  assert.equal(total(s, 'missing'), 0);
});

test('a quantile is taken of what was observed between two scrapes', () => {
  const before = scrape(100, 100, 100, 0);
  assert.equal(quantile(before, scrape(100, 100, 100, 0), 'vllm:time_to_first_token_seconds', 0.5), null);
  assert.ok(Math.abs(quantile(before, scrape(100, 110, 110, 0), 'vllm:time_to_first_token_seconds', 0.5) - 0.15) < 1e-9);
  assert.equal(quantile(before, scrape(100, 100, 104, 0), 'vllm:time_to_first_token_seconds', 0.9), 0.2);
});

test('rates are per second and never negative after a restart of the server', () => {
  assert.equal(sample(scrape(0, 0, 0, 10), scrape(0, 0, 0, 30), 2).decode, 10);
  assert.equal(sample(scrape(0, 0, 0, 30), scrape(0, 0, 0, 1), 1).decode, 0);
});
