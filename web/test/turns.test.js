import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defaults, emptyAnswer, toMessages, toRequest, userTurn, withDelta } from '../src/turns.js';

test('streamed pieces join into reasoning, content and calls', () => {
  let t = emptyAnswer();
  t = withDelta(t, { role: 'assistant', content: '' });
  t = withDelta(t, { reasoning_content: 'a' });
  t = withDelta(t, { content: 'b' });
  t = withDelta(t, { tool_calls: [{ index: 1, id: 'y', function: { name: 'g', arguments: '' } }] });
  t = withDelta(t, { tool_calls: [{ index: 0, id: 'x', function: { name: 'f', arguments: '{' } }] });
  t = withDelta(t, { tool_calls: [{ index: 0, function: { arguments: '}' } }] });
  assert.equal(t.reasoning + t.content, 'ab');
  assert.deepEqual(t.calls, [{ id: 'x', name: 'f', arguments: '{}' }, { id: 'y', name: 'g', arguments: '' }]);
});

test('thinking goes back, failed turns do not, calls get a result', () => {
  const answer = { ...emptyAnswer(), state: 'done', reasoning: 'why', calls: [{ id: 'x', name: 'f', arguments: '{}' }] };
  const sent = toMessages([userTurn('q'), answer, { ...emptyAnswer(), state: 'failed' }], 'sys');
  assert.deepEqual(sent.map((m) => m.role), ['system', 'user', 'assistant', 'tool']);
  assert.equal(sent[2].reasoning_content, 'why');
  assert.equal(sent[2].content, null);
  assert.equal(sent[3].tool_call_id, 'x');
});

test('only what the user set is sent', () => {
  const body = JSON.parse(JSON.stringify(toRequest([userTurn('q')], { ...defaults, temperature: '0', seed: '1.5', thinking: 'off' }, 'm')));
  assert.deepEqual(Object.keys(body).sort(), ['chat_template_kwargs', 'messages', 'model', 'temperature']);
  assert.equal(body.temperature, 0);
  assert.throws(() => toRequest([], { ...defaults, tools: '[' }, 'm'));
});
