// The server's API as the page uses it.
import { createParser } from 'eventsource-parser';

const KEY = 'weir.key';
export const savedKey = () => sessionStorage.getItem(KEY) ?? '';
export const saveKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

const headers = () => {
  const key = savedKey();
  return key ? { authorization: `Bearer ${key}` } : {};
};

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function refuse(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // not an error object: the status line has to do
  }
  throw new ApiError(response.status, message);
}

export async function getModels(signal) {
  const response = await fetch('/v1/models', { headers: headers(), signal });
  if (!response.ok) await refuse(response);
  return (await response.json()).data;
}

export async function getMetrics(signal) {
  const response = await fetch('/metrics', { headers: headers(), signal });
  if (!response.ok) await refuse(response);
  return response.text();
}

// Yields the chunks of a streamed chat completion. Ends early, without an error, when `signal` is aborted.
export async function* streamChat(body, signal) {
  const response = await fetch('/v1/chat/completions', {
    method: 'POST',
    headers: { ...headers(), 'content-type': 'application/json' },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) await refuse(response);
  const ready = [];
  const parser = createParser({ onEvent: (event) => ready.push(event.data) });
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error('The connection ended before the answer did.');
    parser.feed(decoder.decode(value, { stream: true }));
    while (ready.length) {
      const data = ready.shift();
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.code, chunk.error.message);
      yield chunk;
    }
  }
}
