// The page: a chat and a dashboard over one server.
import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { ApiError, getModels, saveKey, savedKey } from './api.js';
import { Chat } from './chat.jsx';
import { Dashboard } from './dashboard.jsx';
import { load, save } from './turns.js';
import './style.css';

const THEMES = ['auto', 'light', 'dark'];

function useTheme() {
  const [theme, setTheme] = useState(() => load('weir.theme', 'auto'));
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    save('weir.theme', theme);
  }, [theme]);
  return [theme, () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length])];
}

function KeyForm({ onDone }) {
  const [key, setKey] = useState(savedKey());
  return (
    <form class="key" onSubmit={(e) => { e.preventDefault(); saveKey(key.trim()); onDone(); }}>
      <h2>This server asks for an API key</h2>
      <input type="password" aria-label="API key" autocomplete="off" value={key} onInput={(e) => setKey(e.target.value)} />
      <button type="submit">Use it</button>
    </form>
  );
}

function App() {
  const [view, setView] = useState(location.hash === '#dashboard' ? 'dashboard' : 'chat');
  const [theme, nextTheme] = useTheme();
  const [models, setModels] = useState([]);
  const [problem, setProblem] = useState(null);
  const [attempt, setAttempt] = useState(0);

  useEffect(() => {
    let timer;
    const stop = new AbortController();
    getModels(stop.signal).then(
      (list) => { setModels(list); setProblem(null); },
      (error) => {
        if (stop.signal.aborted) return;
        setProblem(error);
        if (!(error instanceof ApiError && error.status === 401)) timer = setTimeout(() => setAttempt(attempt + 1), 2000);
      },
    );
    return () => { stop.abort(); clearTimeout(timer); };
  }, [attempt]);

  const show = (name) => { setView(name); history.replaceState(null, '', name === 'chat' ? '#' : '#dashboard'); };
  const needsKey = problem instanceof ApiError && problem.status === 401;
  return (
    <>
      <header>
        <strong class="brand">weir</strong>
        <nav>
          <button aria-pressed={view === 'chat'} onClick={() => show('chat')}>Chat</button>
          <button aria-pressed={view === 'dashboard'} onClick={() => show('dashboard')}>Dashboard</button>
        </nav>
        <span class="model" title={models[0] ? `context ${models[0].max_model_len} tokens` : ''}>{models[0]?.id ?? ''}</span>
        <button class="theme" onClick={nextTheme} aria-label={`Colours: ${theme}. Change`} title={`Colours: ${theme}`}>
          {{ auto: '◐', light: '☀', dark: '☾' }[theme]}
        </button>
      </header>
      {needsKey ? <KeyForm onDone={() => setAttempt(attempt + 1)} /> : <>
        {problem && <p class="banner" role="alert">The server does not answer ({problem.message}). Trying again.</p>}
        {/* Both stay mounted: changing the view must not stop an answer. */}
        <Chat model={models[0]?.id} hidden={view !== 'chat'} />
        <Dashboard hidden={view !== 'dashboard'} />
      </>}
    </>
  );
}

render(<App />, document.getElementById('app'));
