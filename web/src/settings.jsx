// Sampling settings. An empty field leaves the choice to the server.
import { defaults } from './turns.js';

const NUMBERS = [
  ['temperature', 'Temperature', { min: 0, max: 2, step: 0.05 }],
  ['top_p', 'Top p', { min: 0.01, max: 1, step: 0.01 }],
  ['top_k', 'Top k', { min: 0, step: 1 }],
  ['min_p', 'Min p', { min: 0, max: 1, step: 0.01 }],
  ['max_tokens', 'Max tokens', { min: 1, step: 1 }],
  ['seed', 'Seed', { step: 1 }],
];

export function Settings({ value, onChange }) {
  const set = (name) => (e) => onChange({ ...value, [name]: e.target.value });
  return (
    <section class="settings" aria-label="Settings">
      {NUMBERS.map(([name, label, range]) => (
        <label key={name}>{label}
          <input type="number" name={name} {...range} placeholder="default" value={value[name]} onInput={set(name)} />
        </label>
      ))}
      <label>Thinking
        <select value={value.thinking} onChange={set('thinking')}>
          {['default', 'off', 'low', 'medium', 'high', 'max'].map((v) => <option key={v}>{v}</option>)}
        </select>
      </label>
      <label class="wide">System message
        <textarea rows={2} value={value.system} onInput={set('system')} />
      </label>
      <label class="wide">Tools (JSON array)
        <textarea rows={2} value={value.tools} spellcheck={false} onInput={set('tools')} />
      </label>
      <button onClick={() => onChange(defaults)}>Reset</button>
    </section>
  );
}
