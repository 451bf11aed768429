// A conversation as the page keeps it, and as the API wants it.
// A turn: {role, content, reasoning, calls: [{id, name, arguments}], state, note, stats}.

export const userTurn = (content) => ({ role: 'user', content });
export const emptyAnswer = () => ({ role: 'assistant', content: '', reasoning: '', calls: [], state: 'running' });

// Takes one streamed delta into an answer; returns a new object, so that views see the change.
export function withDelta(answer, delta) {
  const next = { ...answer };
  if (delta.reasoning_content) next.reasoning += delta.reasoning_content;
  if (delta.content) next.content += delta.content;
  for (const piece of delta.tool_calls ?? []) {
    const calls = [...next.calls];
    const old = calls[piece.index] ?? { id: '', name: '', arguments: '' };
    calls[piece.index] = {
      id: piece.id ?? old.id,
      name: piece.function?.name ?? old.name,
      arguments: old.arguments + (piece.function?.arguments ?? ''),
    };
    next.calls = calls;
  }
  return next;
}

// Thinking goes back with every turn: the model was trained to find its own there.
export function toMessages(turns, system) {
  const messages = system ? [{ role: 'system', content: system }] : [];
  for (const turn of turns) {
    if (turn.state === 'failed') continue;
    if (turn.role !== 'assistant') {
      messages.push({ role: turn.role, content: turn.content });
      continue;
    }
    const message = { role: 'assistant', content: turn.content || null };
    if (turn.reasoning) message.reasoning_content = turn.reasoning;
    if (turn.calls.length)
      message.tool_calls = turn.calls.map((c) => ({
        id: c.id, type: 'function', function: { name: c.name, arguments: c.arguments },
      }));
    if (message.content === null && !message.tool_calls && !message.reasoning_content) message.content = '';
    messages.push(message);
    // A call the page cannot carry out still needs its result, or the next request would be malformed.
    for (const c of turn.calls)
      messages.push({ role: 'tool', tool_call_id: c.id, content: 'This page does not run tools.' });
  }
  return messages;
}

export const defaults = {
  system: '', temperature: '', top_p: '', top_k: '', min_p: '', max_tokens: '', seed: '', thinking: 'default', tools: '',
};

const number = (text, whole) => {
  const value = Number(text);
  return text.trim() === '' || !Number.isFinite(value) || (whole && !Number.isInteger(value)) ? undefined : value;
};

// Only what the user set is sent; the rest is the server's to decide.
export function toRequest(turns, settings, model) {
  const body = { model, messages: toMessages(turns, settings.system.trim()) };
  for (const name of ['temperature', 'top_p', 'min_p']) body[name] = number(settings[name], false);
  for (const name of ['top_k', 'max_tokens', 'seed']) body[name] = number(settings[name], true);
  if (settings.thinking === 'off') body.chat_template_kwargs = { thinking: false };
  else if (settings.thinking !== 'default') body.reasoning_effort = settings.thinking;
  if (settings.tools.trim()) body.tools = JSON.parse(settings.tools);
  return body;
}

export function load(key, fallback) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? fallback;
  } catch {
    return fallback;
  }
}

export function save(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // storage full or forbidden: the page works, it just forgets
  }
}
