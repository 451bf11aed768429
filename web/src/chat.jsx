// The chat: turns, composer, settings. One answer streams at a time.
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { streamChat } from './api.js';
import { Markdown } from './markdown.jsx';
import { Settings } from './settings.jsx';
import { defaults, emptyAnswer, load, save, toRequest, userTurn, withDelta } from './turns.js';

const pretty = (text) => {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // still streaming, or not JSON at all
  }
};

function Stats({ stats }) {
  if (!stats) return null;
  const parts = [];
  if (stats.completion) parts.push(`${stats.completion} ${stats.completion === 1 ? 'token' : 'tokens'}`);
  if (stats.rate) parts.push(`${stats.rate.toFixed(stats.rate < 10 ? 1 : 0)} tokens/s`);
  if (stats.ttft !== undefined) parts.push(`first after ${Math.round(stats.ttft)} ms`);
  if (stats.cached) parts.push(`${stats.cached} of ${stats.prompt} prompt ${stats.prompt === 1 ? 'token' : 'tokens'} cached`);
  return <span class="stats">{parts.join(' · ')}</span>;
}

function Answer({ turn, last, onRetry }) {
  const running = turn.state === 'running';
  return (
    <article class="turn assistant" aria-busy={running}>
      {turn.reasoning && (
        <details class="reasoning">
          <summary>{running && !turn.content ? 'Thinking…' : 'Thinking'}</summary>
          <div>{turn.reasoning}</div>
        </details>
      )}
      {turn.content && <Markdown text={turn.content} done={!running} />}
      {turn.calls.map((c) => (
        <div class="call" key={c.id}>
          <span>calls <b>{c.name}</b></span>
          <pre>{pretty(c.arguments)}</pre>
        </div>
      ))}
      {running && !turn.content && !turn.reasoning && <span class="cursor" aria-label="waiting" />}
      {turn.note && <p class={turn.state === 'failed' ? 'note failed' : 'note'} role={turn.state === 'failed' ? 'alert' : undefined}>{turn.note}</p>}
      {!running && (
        <footer>
          <Stats stats={turn.stats} />
          {turn.content && <button onClick={() => navigator.clipboard.writeText(turn.content)}>Copy</button>}
          {last && <button onClick={onRetry}>Try again</button>}
        </footer>
      )}
    </article>
  );
}

function User({ turn, onEdit, disabled }) {
  return (
    <article class="turn user">
      <div class="bubble">{turn.content}</div>
      <footer><button disabled={disabled} onClick={onEdit}>Edit</button></footer>
    </article>
  );
}

function Composer({ draft, setDraft, busy, ready, onSend, onStop }) {
  const ref = useRef(null);
  useLayoutEffect(() => {
    const box = ref.current;
    box.style.height = 'auto';
    const border = box.offsetHeight - box.clientHeight; // scrollHeight counts none, height does
    box.style.height = `${Math.min(box.scrollHeight + border, innerHeight * 0.4)}px`;
  }, [draft]);
  const onKeyDown = (e) => {
    if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      onSend();
    }
    if (e.key === 'Escape' && busy) onStop();
  };
  return (
    <form class="composer" onSubmit={(e) => { e.preventDefault(); onSend(); }}>
      <textarea ref={ref} rows={1} value={draft} placeholder="Write a message" aria-label="Message"
        onInput={(e) => setDraft(e.target.value)} onKeyDown={onKeyDown} />
      {busy
        ? <button type="button" class="stop" onClick={onStop}>Stop</button>
        : <button type="submit" class="send" disabled={!ready || !draft.trim()}>Send</button>}
    </form>
  );
}

export function Chat({ model, hidden }) {
  const [turns, setTurns] = useState(() =>
    load('weir.turns', []).map((t) => (t.state === 'running' ? { ...t, state: 'stopped', note: 'Stopped by a reload.' } : t)));
  const [settings, setSettings] = useState(() => ({ ...defaults, ...load('weir.settings', {}) }));
  const [draft, setDraft] = useState('');
  const [open, setOpen] = useState(false);
  const [problem, setProblem] = useState(null);
  const stop = useRef(null);
  const scroller = useRef(null);
  const follow = useRef(true);
  const busy = turns.at(-1)?.state === 'running';

  useEffect(() => save('weir.settings', settings), [settings]);
  useEffect(() => {
    const timer = setTimeout(() => save('weir.turns', turns), 150); // not once per token
    return () => clearTimeout(timer);
  }, [turns]);
  useLayoutEffect(() => {
    if (follow.current) scroller.current.scrollTop = scroller.current.scrollHeight;
  }, [turns, hidden]);

  const answer = useCallback(async (history) => {
    let body;
    try {
      body = toRequest(history, settings, model);
    } catch {
      setProblem('The tools in the settings are not a JSON array.');
      return;
    }
    setProblem(null);
    const control = new AbortController();
    stop.current = control;
    let turn = emptyAnswer();
    let usage, finish, first;
    const started = performance.now();
    const show = () => setTurns([...history, turn]);
    let frame = 0;
    const showSoon = () => { frame ||= requestAnimationFrame(() => { frame = 0; show(); }); };
    follow.current = true;
    show();
    try {
      for await (const chunk of streamChat(body, control.signal)) {
        if (chunk.usage) usage = chunk.usage;
        const choice = chunk.choices[0];
        if (!choice) continue;
        const { delta } = choice;
        if (delta.content || delta.reasoning_content || delta.tool_calls) first ??= performance.now();
        turn = withDelta(turn, delta);
        finish = choice.finish_reason ?? finish;
        showSoon();
      }
      turn = { ...turn, state: 'done', note: finish === 'length' ? 'The answer reached its length limit.' : '' };
    } catch (error) {
      turn = control.signal.aborted
        ? { ...turn, state: 'stopped', note: 'Stopped.' }
        : { ...turn, state: 'failed', note: error.message };
    }
    cancelAnimationFrame(frame);
    if (first) {
      const seconds = (performance.now() - first) / 1000;
      turn.stats = {
        ttft: first - started,
        completion: usage?.completion_tokens,
        prompt: usage?.prompt_tokens,
        cached: usage?.prompt_tokens_details?.cached_tokens,
        rate: usage && usage.completion_tokens > 1 && seconds > 0 ? (usage.completion_tokens - 1) / seconds : 0,
      };
    }
    show();
  }, [settings, model]);

  const send = () => {
    const text = draft.trim();
    if (!text || busy || !model) return;
    setDraft('');
    answer([...turns, userTurn(text)]);
  };
  const edit = (index) => {
    setDraft(turns[index].content);
    setTurns(turns.slice(0, index));
  };
  const onScroll = (e) => {
    const { scrollTop, scrollHeight, clientHeight } = e.target;
    follow.current = scrollHeight - scrollTop - clientHeight < 40;
  };
  return (
    <main class="chat" hidden={hidden}>
      <section class="turns" ref={scroller} onScroll={onScroll} aria-live="polite">
        {!turns.length && <p class="empty">Ask something. The answer streams as it is made; Escape stops it.</p>}
        {turns.map((t, i) => (t.role === 'user'
          ? <User key={i} turn={t} disabled={busy} onEdit={() => edit(i)} />
          : <Answer key={i} turn={t} last={i === turns.length - 1} onRetry={() => answer(turns.slice(0, i))} />))}
      </section>
      {problem && <p class="banner" role="alert">{problem}</p>}
      <div class="tools">
        <button onClick={() => setOpen(!open)} aria-expanded={open}>Settings</button>
        <button disabled={busy || !turns.length} onClick={() => { setTurns([]); setProblem(null); }}>New chat</button>
      </div>
      {open && <Settings value={settings} onChange={setSettings} />}
      <Composer draft={draft} setDraft={setDraft} busy={busy} ready={!!model} onSend={send} onStop={() => stop.current?.abort()} />
    </main>
  );
}
