// Prometheus text to the figures the dashboard shows.

// -> Map from series name to [{labels, value}]
export function parse(text) {
  const series = new Map();
  for (const line of text.split('\n')) {
    if (!line || line[0] === '#') continue;
    const match = /^([^\s{]+)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? '').matchAll(/([^=,\s]+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    const value = match[3] === '+Inf' ? Infinity : Number(match[3]);
    if (!series.has(match[1])) series.set(match[1], []);
    series.get(match[1]).push({ labels, value });
  }
  return series;
}

export const total = (series, name) => (series.get(name) ?? []).reduce((sum, s) => sum + s.value, 0);

// Buckets of a histogram, summed over labels: [[edge, cumulative count], ...] by rising edge.
function buckets(series, name) {
  const byEdge = new Map();
  for (const s of series.get(`${name}_bucket`) ?? []) {
    const edge = s.labels.le === '+Inf' ? Infinity : Number(s.labels.le);
    byEdge.set(edge, (byEdge.get(edge) ?? 0) + s.value);
  }
  return [...byEdge].sort((a, b) => a[0] - b[0]);
}

// The q-quantile of what was observed between two scrapes, by linear interpolation inside its bucket; null if nothing was.
export function quantile(before, now, name, q) {
  const old = new Map(before ? buckets(before, name) : []);
  const rows = buckets(now, name).map(([edge, count]) => [edge, count - (old.get(edge) ?? 0)]);
  const all = rows.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  let low = 0, below = 0;
  for (const [edge, count] of rows) {
    if (count >= q * all) {
      if (edge === Infinity) return low;
      return count === below ? edge : low + ((edge - low) * (q * all - below)) / (count - below);
    }
    low = edge;
    below = count;
  }
  return low;
}

// Sum of the series of a name that carry all of these labels.
const picked = (series, name, labels) => (series.get(name) ?? [])
  .filter((s) => Object.entries(labels).every(([k, v]) => s.labels[k] === v)).reduce((sum, s) => sum + s.value, 0);

const labelsOf = (series, name, label) => [...new Set((series.get(name) ?? []).map((s) => s.labels[label]))];

// The open tiers, fastest first, with counters since the start of the server. limit 0: the tier does not say.
function tiers(now) {
  return labelsOf(now, 'weir_tier_up', 'tier').map((tier) => {
    const moved = (name, task) => picked(now, name, { tier, task });
    const ended = (result) => picked(now, 'weir_tier_moves_total', { tier, result });
    return {
      tier,
      up: picked(now, 'weir_tier_up', { tier }) === 1,
      used: picked(now, 'weir_tier_used_bytes', { tier }),
      limit: picked(now, 'weir_tier_limit_bytes', { tier }),
      loadBytes: moved('weir_tier_moved_bytes_total', 'load'),
      storeBytes: moved('weir_tier_moved_bytes_total', 'store'),
      loadSeconds: moved('weir_tier_move_seconds_total', 'load'),
      storeSeconds: moved('weir_tier_move_seconds_total', 'store'),
      failures: ended('failed') + ended('damaged'),
    };
  });
}

// Bytes a second that moves of a tier saw between two rows; null if none ended.
export function bandwidth(first, last, tier, task) {
  const at = (row) => row.tiers.find((t) => t.tier === tier) ?? {};
  const seconds = at(last)[`${task}Seconds`] - (at(first)[`${task}Seconds`] ?? 0);
  const bytes = at(last)[`${task}Bytes`] - (at(first)[`${task}Bytes`] ?? 0);
  return seconds > 0 && bytes > 0 ? bytes / seconds : null;
}

// Share of prompt tokens that were not computed: between two rows, or since the start where nothing was asked between them.
export function hitRate(first, last) {
  const queries = last.queries - first.queries;
  if (queries > 0) return { value: (last.hits - first.hits) / queries, recent: true };
  return { value: last.queries > 0 ? last.hits / last.queries : null, recent: false };
}

const TIERS = ['host', 'disk', 'remote'];
export const SOURCES = ['device', ...TIERS, 'stateless', 'fresh'];

// Prompt tokens a second by where they came from. What was computed is split into what had lost its state and what was new.
function sources(before, now, seconds) {
  const name = 'weir_prompt_tokens_by_source_total';
  const rate = (get) => (before ? Math.max(0, get(now) - get(before)) / seconds : 0);
  const from = (source) => rate((s) => picked(s, name, { source }));
  const stateless = rate((s) => total(s, 'weir_stateless_tokens_total'));
  return {
    ...Object.fromEntries(['device', ...TIERS].map((source) => [source, from(source)])),
    stateless, fresh: Math.max(0, from('computed') - stateless),
  };
}

// Each series as the sum of itself and those below it; the first is the lowest.
export function stacked(columns) {
  const sums = [];
  for (const column of columns) {
    const below = sums.at(-1);
    sums.push(column.map((v, i) => (v ?? 0) + (below ? below[i] : 0)));
  }
  return sums;
}

// One row of the dashboard from two scrapes `seconds` apart.
export function sample(before, now, seconds) {
  const rate = (name) => (before ? Math.max(0, total(now, name) - total(before, name)) / seconds : 0);
  const recent = (name, q) => (before ? quantile(before, now, name, q) : null);
  return {
    started: total(now, 'process_start_time_seconds'),
    running: total(now, 'vllm:num_requests_running'),
    waiting: total(now, 'vllm:num_requests_waiting'),
    decode: rate('vllm:generation_tokens_total'),
    prefill: rate('vllm:prompt_tokens_total'),
    queries: total(now, 'vllm:prefix_cache_queries_total'),
    hits: total(now, 'vllm:prefix_cache_hits_total'),
    ...sources(before, now, seconds),
    pagesUsed: total(now, 'weir_kv_pages_used'),
    pagesCached: total(now, 'weir_kv_pages_cached'),
    pages: total(now, 'weir_kv_pages'),
    slotsUsed: total(now, 'weir_state_slots_used'),
    slotsCached: total(now, 'weir_state_slots_cached'),
    slots: total(now, 'weir_state_slots'),
    tiers: tiers(now),
    reasons: labelsOf(now, 'weir_checkpoints_stored_total', 'reason').map((reason) => ({
      reason,
      stored: picked(now, 'weir_checkpoints_stored_total', { reason }),
      resumed: picked(now, 'weir_checkpoints_resumed_total', { reason }),
    })),
    unplaced: total(now, 'weir_checkpoints_unplaced_total'),
    preemptions: total(now, 'vllm:num_preemptions_total'),
    ttft50: recent('vllm:time_to_first_token_seconds', 0.5),
    ttft90: recent('vllm:time_to_first_token_seconds', 0.9),
    itl50: recent('vllm:inter_token_latency_seconds', 0.5),
    itl90: recent('vllm:inter_token_latency_seconds', 0.9),
  };
}
