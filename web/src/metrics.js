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

// One row of the dashboard from two scrapes `seconds` apart.
export function sample(before, now, seconds) {
  const rate = (name) => (before ? Math.max(0, total(now, name) - total(before, name)) / seconds : 0);
  return {
    running: total(now, 'vllm:num_requests_running'),
    waiting: total(now, 'vllm:num_requests_waiting'),
    decode: rate('vllm:generation_tokens_total'),
    prefill: rate('vllm:prompt_tokens_total'),
    kv: total(now, 'vllm:kv_cache_usage_perc'),
    slots: total(now, 'weir_state_slots_used') / Math.max(1, total(now, 'weir_state_slots')),
    preemptions: total(now, 'vllm:num_preemptions_total'),
    ttft50: quantile(before, now, 'vllm:time_to_first_token_seconds', 0.5),
    ttft90: quantile(before, now, 'vllm:time_to_first_token_seconds', 0.9),
    itl50: quantile(before, now, 'vllm:inter_token_latency_seconds', 0.5),
    itl90: quantile(before, now, 'vllm:inter_token_latency_seconds', 0.9),
  };
}
