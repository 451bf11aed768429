import assert from 'node:assert/strict';
import { test } from 'node:test';
import { bandwidth, hitRate, parse, quantile, sample, stacked, total } from '../src/metrics.js';

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

const cache = (device, computed, stateless, more = '') => parse(`
vllm:prefix_cache_queries_total{engine="0"} ${device + computed}
vllm:prefix_cache_hits_total{engine="0"} ${device}
weir_prompt_tokens_by_source_total{engine="0",source="device"} ${device}
weir_prompt_tokens_by_source_total{engine="0",source="computed"} ${computed}
weir_stateless_tokens_total{engine="0"} ${stateless}
weir_checkpoints_stored_total{engine="0",reason="junction"} 3
weir_checkpoints_resumed_total{engine="0",reason="junction"} 2
${more}`);

const disk = (up, bytes, seconds, failed) => `
weir_tier_up{tier="disk"} ${up}
weir_tier_used_bytes{tier="disk"} 10
weir_tier_limit_bytes{tier="disk"} 40
weir_tier_moves_total{tier="disk",task="load",result="ok"} 100
weir_tier_moves_total{tier="disk",task="load",result="failed"} ${failed}
weir_tier_moves_total{tier="disk",task="store",result="damaged"} 1
weir_tier_moved_bytes_total{tier="disk",task="load"} ${bytes}
weir_tier_moved_bytes_total{tier="disk",task="store"} 0
weir_tier_move_seconds_total{tier="disk",task="load"} ${seconds}
weir_tier_move_seconds_total{tier="disk",task="store"} 0
`;

test('prompt tokens are split by source, computed ones into those without a state and new ones', () => {
  const row = sample(cache(100, 50, 10), cache(300, 150, 40), 2);
  assert.deepEqual([row.device, row.host, row.stateless, row.fresh], [100, 0, 15, 35]);
  assert.equal(row.device + row.stateless + row.fresh, (300 + 150 - 150) / 2);
});

test('the hit rate is that of the rows in view, or of all where nothing was asked', () => {
  const row = (device, computed) => sample(null, cache(device, computed, 0), 1);
  assert.deepEqual(hitRate(row(100, 100), row(400, 200)), { value: 0.75, recent: true });
  assert.deepEqual(hitRate(row(100, 300), row(100, 300)), { value: 0.25, recent: false });
  assert.deepEqual(hitRate(row(0, 0), row(0, 0)), { value: null, recent: false });
});

test('a tier has its state, room, failures and the bandwidth of what moved between two rows', () => {
  const first = sample(null, cache(0, 0, 0, disk(1, 1000, 1, 0)), 1), last = sample(null, cache(0, 0, 0, disk(0, 5000, 3, 6)), 1);
  const [tier] = last.tiers;
  assert.deepEqual([tier.tier, tier.up, tier.used, tier.limit, tier.failures], ['disk', false, 10, 40, 7]);
  assert.equal(bandwidth(first, last, 'disk', 'load'), 2000);
  assert.equal(bandwidth(first, last, 'disk', 'store'), null);
  assert.equal(bandwidth(last, last, 'disk', 'load'), null);
  assert.deepEqual(sample(null, cache(0, 0, 0), 1).tiers, []);
  assert.deepEqual(last.reasons, [{ reason: 'junction', stored: 3, resumed: 2 }]);
});

test('a stack stands on what is below it, and nothing counts as 0', () => {
  assert.deepEqual(stacked([[1, null, 3], [10, 20, 30], [null, 1, 0]]), [[1, 0, 3], [11, 20, 33], [11, 21, 33]]);
});
