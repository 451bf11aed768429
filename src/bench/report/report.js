'use strict';
// Comfort only: the page is whole without it. Theme, tips, the values under the pointer, which runs the distributions show.
(() => {
  const root = document.documentElement;
  root.classList.add('script');

  const theme = document.getElementById('theme');
  const names = ['auto', 'light', 'dark'];
  const keep = (value) => { try { localStorage.setItem('weir-report-theme', value); } catch { /* not from a file */ } };
  const setTheme = (value) => {
    if (value === 'auto') delete root.dataset.theme; else root.dataset.theme = value;
    theme.textContent = `Theme: ${value}`;
    theme.dataset.value = value;
  };
  let stored = null;
  try { stored = localStorage.getItem('weir-report-theme'); } catch { /* not from a file */ }
  setTheme(names.includes(stored) ? stored : 'auto');
  theme.hidden = false;
  theme.addEventListener('click', () => {
    const next = names[(names.indexOf(theme.dataset.value) + 1) % names.length];
    setTheme(next);
    keep(next);
  });

  const tip = document.createElement('div');
  tip.id = 'tip';
  tip.hidden = true;
  document.body.append(tip);
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const wide = root.clientWidth, box = tip.getBoundingClientRect();
    const left = Math.max(4, Math.min(x + 14, wide - box.width - 8));
    const above = y - box.height - 12;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(above < 4 ? y + 16 : above) + scrollY}px`;
  };
  const hide = () => { tip.hidden = true; };
  addEventListener('keydown', (e) => { if (e.key === 'Escape') hide(); });

  // The titles of charts and marks would be shown by the browser, too; what they say is in labels.
  for (const title of document.querySelectorAll('svg > title')) {
    const svg = title.parentElement;
    svg.setAttribute('aria-label', title.textContent);
    svg.setAttribute('aria-describedby', title.id.replace(/-t$/, '-d'));
    svg.removeAttribute('aria-labelledby');
    title.remove();
  }
  for (const mark of document.querySelectorAll('.mark')) {
    mark.querySelector('title')?.remove();
    const text = mark.getAttribute('aria-label');
    mark.addEventListener('pointermove', (e) => show(text, e.clientX, e.clientY));
    mark.addEventListener('pointerleave', hide);
    mark.addEventListener('focus', () => {
      const box = mark.getBoundingClientRect();
      show(text, box.left + box.width / 2, box.top);
    });
    mark.addEventListener('blur', hide);
  }

  const three = (v) => {
    const a = Math.abs(v);
    if (a === 0) return '0';
    if (a >= 100) return Math.round(v).toLocaleString('en-US');
    return Number(v.toPrecision(3)).toString();
  };
  const figure = (v, kind) => {
    if (kind === 1) return Math.abs(v) >= 0.9995 ? `${three(v)} s` : Math.abs(v) >= 0.0009995 ? `${three(v * 1e3)} ms` : `${three(v * 1e6)} µs`;
    if (kind === 2) return `${(v * 100).toFixed(1)} %`;
    if (kind === 3) return `${Math.floor(v / 60)}:${String(Math.floor(v % 60)).padStart(2, '0')}`;
    if (kind === 4) return `$${three(v)}`;
    return three(v);
  };
  const scale = (text) => {
    const [kind, log, low, high] = text.split(' ').map(Number);
    return { kind, at: (share) => (log ? low * (high / low) ** share : low + (high - low) * share) };
  };
  // Corners of a path of M, L, H and V.
  const corners = (d) => {
    const out = [];
    let x = 0, y = 0;
    for (const [, letter, numbers] of d.matchAll(/([MLHV])([^MLHV]*)/g)) {
      const n = numbers.trim().split(/\s+/).map(Number);
      if (letter === 'H') [x] = n; else if (letter === 'V') [y] = n; else [x, y] = n;
      out.push([x, y]);
    }
    return out;
  };
  for (const svg of document.querySelectorAll('svg[data-plot]')) {
    const [left, top, right, bottom] = svg.dataset.plot.split(' ').map(Number);
    const sx = scale(svg.dataset.x), sy = scale(svg.dataset.y);
    const cursor = document.createElementNS('http://www.w3.org/2000/svg', 'path');
    cursor.setAttribute('class', 'cursor off');
    svg.append(cursor);
    let lines = null;
    svg.addEventListener('pointermove', (e) => {
      lines ??= [...svg.querySelectorAll('path.line')].map((path) => ({ path, points: corners(path.getAttribute('d')) }));
      const at = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
      if (at.x < left || at.x > right || at.y < top - 8 || at.y > bottom + 8) { leave(); return; }
      const told = [figure(sx.at((at.x - left) / (right - left)), sx.kind)];
      for (const { path, points } of lines) {
        if (path.classList.contains('off')) continue;
        const i = points.findIndex((p) => p[0] > at.x);
        const p = i > 0 ? points[i - 1] : i === 0 ? null : points.at(-1);
        if (!p) continue;
        let y = p[1];
        if (i > 0 && path.getAttribute('d').includes('L')) y += (points[i][1] - y) * (at.x - p[0]) / (points[i][0] - p[0] || 1);
        told.push(`${path.dataset.name}: ${figure(sy.at((bottom - y) / (bottom - top)), sy.kind)}`);
      }
      cursor.setAttribute('d', `M${at.x} ${top}V${bottom}`);
      cursor.classList.remove('off');
      show(told.join('\n'), e.clientX, e.clientY);
    });
    const leave = () => { cursor.classList.add('off'); hide(); };
    svg.addEventListener('pointerleave', leave);
  }

  // Browsers follow addresses of 2 MB at most; what an address of many runs holds is handed over as a file in memory.
  for (const link of document.querySelectorAll('a[download]'))
    link.addEventListener('click', () => {
      const [, type, body] = /^data:([^;]*);base64,(.*)$/.exec(link.getAttribute('href')) ?? [];
      if (body === undefined) return;
      const bytes = Uint8Array.from(atob(body), (c) => c.charCodeAt(0));
      link.href = URL.createObjectURL(new Blob([bytes], { type }));
    });

  const boxes = [...document.querySelectorAll('[data-choose]')];
  const apply = () => {
    for (const box of boxes)
      for (const path of document.querySelectorAll(`[data-point="${box.dataset.choose}"]`)) path.classList.toggle('off', !box.checked);
  };
  for (const box of boxes) box.addEventListener('change', apply);
  for (const button of document.querySelectorAll('[data-choose-all]'))
    button.addEventListener('click', () => {
      for (const box of boxes) box.checked = button.dataset.chooseAll === '1';
      apply();
    });
  apply();
})();
