// The live picture: one scrape a second while it is in sight.
import { useEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { getMetrics } from './api.js';
import { parse, sample } from './metrics.js';

const KEEP = 300; // samples, five minutes

const count = (v) => (v >= 10000 ? `${(v / 1000).toFixed(0)}k` : v >= 100 || Number.isInteger(v) ? v.toFixed(0) : v.toFixed(1));
const percent = (v) => `${(v * 100).toFixed(v < 0.1 ? 1 : 0)} %`;
const time = (v) => (v === null || v === undefined ? '–' : v < 1 ? `${(v * 1000).toFixed(v < 0.01 ? 1 : 0)} ms` : `${v.toFixed(2)} s`);

const CHARTS = [
  ['Tokens per second', [['decode', 'generated'], ['prefill', 'prompt']], count],
  ['Requests', [['running', 'running'], ['waiting', 'waiting']], count],
  ['Time to first token', [['ttft50', 'median'], ['ttft90', 'p90']], time],
  ['Inter-token latency', [['itl50', 'median'], ['itl90', 'p90']], time],
  ['Pools in use', [['kv', 'KV pages'], ['slots', 'state slots']], percent],
];

function Chart({ title, series, format, rows }) {
  const box = useRef(null);
  const plot = useRef(null);
  useEffect(() => {
    const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = { stroke: () => css('--quiet'), grid: { stroke: () => css('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui' };
    plot.current = new uPlot({
      width: box.current.clientWidth || 300,
      height: 150,
      cursor: { y: false },
      legend: { live: false },
      scales: { y: { range: (_, __, max) => [0, Math.max(max * 1.1, 1e-3)] } },
      axes: [{ ...axis, space: 80, values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toTimeString().slice(0, 8)) }, { ...axis, size: 58, values: (_, ticks) => ticks.map(format) }],
      series: [{}, ...series.map(([, label], i) => ({
        label, stroke: () => css(i ? '--second' : '--accent'), width: 1.5, spanGaps: false, points: { show: false },
      }))],
    }, [[], ...series.map(() => [])], box.current);
    const resize = new ResizeObserver(([e]) => e.contentRect.width && plot.current.setSize({ width: e.contentRect.width, height: 150 }));
    resize.observe(box.current);
    return () => { resize.disconnect(); plot.current.destroy(); };
  }, []);
  useEffect(() => {
    plot.current.setData([rows.map((r) => r.at), ...series.map(([name]) => rows.map((r) => r[name]))]);
  }, [rows]);
  return <figure><figcaption>{title}</figcaption><div ref={box} /></figure>;
}

const Figure = ({ label, value }) => <div class="figure"><b>{value}</b><span>{label}</span></div>;

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
        setRows((old) => [...old.slice(1 - KEEP), row]);
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
  return (
    <main class="dashboard" hidden={hidden}>
      {problem && <p class="banner" role="alert">No metrics: {problem.message}</p>}
      <section class="figures">
        <Figure label="running" value={now ? count(now.running) : '–'} />
        <Figure label="waiting" value={now ? count(now.waiting) : '–'} />
        <Figure label="tokens/s generated" value={now ? count(now.decode) : '–'} />
        <Figure label="tokens/s prompt" value={now ? count(now.prefill) : '–'} />
        <Figure label="first token, median" value={time(now?.ttft50)} />
        <Figure label="inter-token, median" value={time(now?.itl50)} />
        <Figure label="KV pages" value={now ? percent(now.kv) : '–'} />
        <Figure label="state slots" value={now ? percent(now.slots) : '–'} />
        <Figure label="preemptions" value={now ? count(now.preemptions) : '–'} />
      </section>
      <section class="charts">
        {CHARTS.map(([title, series, format]) => <Chart key={title} title={title} series={series} format={format} rows={rows} />)}
      </section>
    </main>
  );
}
