// Pictures over time: lines, or areas stacked on each other.
import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { stacked } from './metrics.js';

const HEIGHT = 132;
const SPAN = 60; // seconds that the time axis shows at least

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Values with no neighbour to draw a line to, which would stay invisible.
const lone = (values) => values.flatMap((v, i) => (v !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null ? [i] : []));

// series: [[key of a row, label, colour variable], ...], for a stack from the ground up. top: the y axis shows at least this
// much (a function of the newest row, or a number); whole: y values are counts of things.
export function Chart({ title, note, series, format, rows, stack, top = 0, whole, wide, empty }) {
  const box = useRef(null);
  const plot = useRef(null);
  const least = useRef(0);
  const hasValues = rows.some((r) => series.some(([key]) => (r[key] ?? null) !== null));
  least.current = typeof top === 'function' ? (rows.length ? top(rows.at(-1)) : 0) : top;
  // The areas are painted from the highest sum down, so that each leaves visible what is its own.
  const drawn = stack ? [...series].reverse() : series;
  useEffect(() => {
    const axis = { stroke: () => css('--quiet'), grid: { stroke: () => css('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui' };
    plot.current = new uPlot({
      width: box.current.clientWidth || 300,
      height: HEIGHT,
      cursor: { y: false },
      legend: { live: false },
      scales: {
        x: { range: (_, min, max) => { const end = max ?? Date.now() / 1000; return [Math.min(min ?? end, end - SPAN), end]; } },
        y: { range: (_, __, max) => [0, Math.max((max ?? 0) * 1.1, least.current) || 1] },
      },
      axes: [
        { ...axis, size: 28, space: 80, values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toTimeString().slice(0, 8)) },
        { ...axis, size: 58, ...(whole && { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6] }), values: (_, ticks) => ticks.map(format) },
      ],
      series: [{}, ...drawn.map(([, label, colour]) => ({
        label, stroke: () => css(colour), width: stack ? 1 : 1.5, spanGaps: false,
        ...(stack && { fill: () => css(colour), paths: uPlot.paths.stepped({ align: -1 }) }),
        points: { show: false, size: 5, fill: () => css(colour), ...(!stack && { filter: (u, i) => lone(u.data[i]) }) },
      }))],
    }, [[], ...series.map(() => [])], box.current);
    const resize = new ResizeObserver(([e]) => e.contentRect.width && plot.current.setSize({ width: e.contentRect.width, height: HEIGHT }));
    resize.observe(box.current);
    return () => { resize.disconnect(); plot.current.destroy(); };
  }, []);
  useEffect(() => {
    const columns = series.map(([key]) => rows.map((r) => r[key] ?? null));
    plot.current.setData([rows.map((r) => r.at), ...(stack ? stacked(columns).reverse() : columns)]);
  }, [rows]);
  return (
    <figure class={wide ? 'wide' : ''}>
      <figcaption>{title}<span>{note}</span></figcaption>
      <div ref={box} class={hasValues ? 'plot' : 'plot bare'} data-empty={hasValues ? undefined : empty ?? 'Nothing yet'} />
    </figure>
  );
}
