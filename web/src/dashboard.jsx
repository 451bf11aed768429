// The live picture: one scrape a second while it is in sight.
import { useEffect, useRef, useState } from 'preact/hooks';
import { getMetrics } from './api.js';
import { Chart } from './chart.jsx';
import { SOURCES, bandwidth, hitRate, parse, sample } from './metrics.js';

const KEEP = 300; // samples, five minutes

const count = (v) => (v >= 10000 ? `${(v / 1000).toFixed(0)}k` : v >= 100 || Number.isInteger(v) ? v.toFixed(0) : v.toFixed(1));
const percent = (v) => (v === null ? '–' : `${(v * 100).toFixed(v > 0 && v < 0.1 ? 1 : 0)} %`);
const time = (v) => (v === null || v === undefined ? '–' : v === 0 ? '0' : v < 1 ? `${(v * 1000).toFixed(v < 0.01 ? 1 : 0)} ms` : `${v.toFixed(2)} s`);
const scaled = (v, base, units) => {
  let i = 0;
  while (v >= base && i < units.length - 1) { v /= base; i++; }
  return `${v >= 100 || i === 0 ? v.toFixed(0) : v.toFixed(1)} ${units[i]}`;
};
const size = (v) => scaled(v, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']);
const speed = (v) => (v === null ? '–' : scaled(v, 1000, ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s']));

const LINES = {
  rates: { title: 'Tokens per second', series: [['decode', 'generated', '--accent'], ['prefill', 'prompt', '--second']], format: count },
  requests: { title: 'Requests', series: [['running', 'running', '--accent'], ['waiting', 'waiting', '--second']], format: count, whole: true, top: 1 },
  first: { title: 'Time to first token', series: [['ttft50', 'median', '--accent'], ['ttft90', 'p90', '--second']], format: time, empty: 'No request in view' },
  between: { title: 'Inter-token latency', series: [['itl50', 'median', '--accent'], ['itl90', 'p90', '--second']], format: time, empty: 'No request in view' },
};

const SOURCE_NAMES = { device: 'device', host: 'host', disk: 'disk', remote: 'remote', stateless: 'recomputed, no state', fresh: 'new' };

const Figure = ({ label, value }) => <div class="figure"><b>{value}</b><span>{label}</span></div>;

// Where prompt tokens came from. Tiers that are not open are left out.
function Sources({ rows }) {
  const open = (rows.at(-1)?.tiers ?? []).map((t) => t.tier);
  const shown = SOURCES.filter((s) => !['host', 'disk', 'remote'].includes(s) || open.includes(s));
  return <Chart key={shown.join()} title="Where prompt tokens came from" note="tokens/s" wide stack rows={rows} format={count}
    series={shown.map((s) => [s, SOURCE_NAMES[s], `--from-${s}`])} />;
}

function Pool({ title, name, rows }) {
  const now = rows.at(-1);
  const used = now?.[`${name}Used`], cached = now?.[`${name}Cached`], all = now?.[name];
  return <Chart title={title} note={now && `${used} in use, ${cached} cached, ${all - used - cached} free`} stack rows={rows} format={count} whole top={(row) => row[name]}
    series={[[`${name}Used`, 'in use', '--accent'], [`${name}Cached`, 'cached', '--idle']]} />;
}

function Tiers({ rows }) {
  const now = rows.at(-1);
  return (
    <figure class="full tiers">
      <figcaption>Tiers below the device</figcaption>
      {now && !now.tiers.length && <p class="quiet">None is open. Prefixes live in the device pools alone.</p>}
      {now?.tiers.map((t) => (
        <p class="tier" key={t.tier}>
          <b>{t.tier}</b>
          <span class={t.up ? 'up' : 'down'}>{t.up ? 'up' : 'down'}</span>
          <span>{size(t.used)}{t.limit > 0 && ` of ${size(t.limit)}`}</span>
          <span>load {speed(bandwidth(rows[0], now, t.tier, 'load'))}</span>
          <span>store {speed(bandwidth(rows[0], now, t.tier, 'store'))}</span>
          <span class={t.failures ? 'down' : ''}>{count(t.failures)} failed</span>
        </p>
      ))}
    </figure>
  );
}

function States({ rows }) {
  const now = rows.at(-1);
  const shown = (now?.reasons ?? []).filter((r) => r.stored || r.resumed);
  return (
    <figure class="states">
      <figcaption>States kept, by reason</figcaption>
      {now && !shown.length && <p class="quiet">None yet.</p>}
      {shown.length > 0 && (
        <table>
          <thead><tr><th /><th>kept</th><th>resumed from</th></tr></thead>
          <tbody>{shown.map((r) => <tr key={r.reason}><td>{r.reason.replaceAll('-', ' ')}</td><td>{count(r.stored)}</td><td>{count(r.resumed)}</td></tr>)}</tbody>
        </table>
      )}
      {now?.unplaced > 0 && <p class="quiet">{count(now.unplaced)} more found no free slot.</p>}
    </figure>
  );
}

export function Dashboard({ hidden }) {
  const [rows, setRows] = useState([]);
  const [problem, setProblem] = useState(null);
  const last = useRef(null);
  useEffect(() => {
    if (hidden) return undefined;
    const stop = new AbortController();
    let timer;
    const tick = async () => {
      try {
        const now = { at: Date.now() / 1000, series: parse(await getMetrics(stop.signal)) };
        const row = { at: now.at, ...sample(last.current?.series, now.series, last.current ? now.at - last.current.at : 1) };
        last.current = now;
        // Figures of a server that was started anew do not continue the old ones.
        setRows((old) => (old.at(-1)?.started === row.started ? [...old.slice(1 - KEEP), row] : [row]));
        setProblem(null);
      } catch (error) {
        if (stop.signal.aborted) return;
        setProblem(error);
      }
      timer = setTimeout(tick, 1000);
    };
    tick();
    return () => { stop.abort(); clearTimeout(timer); last.current = null; };
  }, [hidden]);
  const now = rows.at(-1);
  const latest = (key) => rows.findLast((r) => r[key] !== null)?.[key];
  const hit = now ? hitRate(rows[0], now) : { value: null, recent: false };
  return (
    <main class="dashboard" hidden={hidden}>
      {problem && <p class="banner" role="alert">No metrics: {problem.message}</p>}
      <section class="figures">
        <Figure label="running" value={now ? count(now.running) : '–'} />
        <Figure label="waiting" value={now ? count(now.waiting) : '–'} />
        <Figure label="tokens/s out" value={now ? count(now.decode) : '–'} />
        <Figure label="tokens/s in" value={now ? count(now.prefill) : '–'} />
        <Figure label="first token, median" value={time(latest('ttft50'))} />
        <Figure label="inter-token, median" value={time(latest('itl50'))} />
        <Figure label={hit.recent ? 'hit rate, 5 min' : 'hit rate, total'} value={percent(hit.value)} />
        <Figure label="preemptions" value={now ? count(now.preemptions) : '–'} />
      </section>
      <section class="charts">
        <Chart {...LINES.rates} rows={rows} />
        <Sources rows={rows} />
        <Chart {...LINES.requests} rows={rows} />
        <Chart {...LINES.first} rows={rows} />
        <Chart {...LINES.between} rows={rows} />
        <Pool title="History pages" name="pages" rows={rows} />
        <Pool title="State slots" name="slots" rows={rows} />
        <States rows={rows} />
        <Tiers rows={rows} />
      </section>
    </main>
  );
}
