// The client's own tool loop.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chunk, client, reply, script, seen, user, words } from './helpers.mjs'

const tool = (name, f) => ({ type: 'function', function: { name, description: name, parse: JSON.parse, function: f, parameters: { type: 'object', properties: { a: { type: 'number' } }, required: ['a'] } } })

const wanted = JSON.stringify({
  id: 'chatcmpl-1', object: 'chat.completion', created: 1700000000, model: 'up-1',
  choices: [{ index: 0, finish_reason: 'tool_calls', message: { role: 'assistant', content: null, tool_calls: [
    { id: 'call_1', type: 'function', function: { name: 'twice', arguments: '{"a": 21}' } },
    { id: 'call_2', type: 'function', function: { name: 'broken', arguments: '{"a":1}' } }] } }],
})

test('runTools: both calls of a turn are run and their results go up', async () => {
  const model = await script('loop', [{ body: wanted }, { body: reply('42, and no') }])
  const runner = client().chat.completions.runTools({ model, messages: user('twice 21?'), tools: [tool('twice', ({ a }) => a * 2), tool('broken', () => 'no')] })
  assert.equal(await runner.finalContent(), '42, and no')
  const [, second] = await seen(model)
  const messages = JSON.parse(second.body).messages
  assert.deepEqual(messages.slice(2).map(m => [m.role, m.tool_call_id]), [['tool', 'call_1'], ['tool', 'call_2']])
  assert.deepEqual(messages.slice(2).map(m => m.content), ['42', 'no'])
  assert.equal(messages[1].tool_calls[0].function.arguments, '{"a": 21}')
})

test('runTools, streamed', async () => {
  const model = await script('loop-stream', [{ chunks: [
    chunk({ role: 'assistant', content: null, tool_calls: [{ index: 0, id: 'call_1', type: 'function', function: { name: 'twice', arguments: '' } }] }),
    chunk({ tool_calls: [{ index: 0, function: { arguments: '{"a"' } }] }), chunk({ tool_calls: [{ index: 0, function: { arguments: ':21}' } }] }), chunk({}, 'tool_calls')] },
  { chunks: words('it is 42') }])
  const runner = client().chat.completions.runTools({ model, stream: true, messages: user('twice 21?'), tools: [tool('twice', ({ a }) => a * 2)] })
  assert.equal(await runner.finalContent(), 'it is 42')
  assert.equal(JSON.parse((await seen(model))[1].body).messages[2].content, '42')
})

test('runTools with the demonstration model', async () => {
  const calls = []
  const runner = client().chat.completions.runTools({ model: 'demo/tools', messages: user('please'), tools: [tool('twice', args => { calls.push(args); return 'the result' })] })
  assert.match(await runner.finalContent(), /the result/)
  assert.equal(calls.length, 1)
})

test('tool_choice required and a custom tool call come back as they were', async () => {
  const custom = { id: 'call_c', type: 'custom', custom: { name: 'run', input: 'a\tb' } }
  const model = await script('custom', { body: JSON.stringify({ ...JSON.parse(wanted), choices: [{ index: 0, finish_reason: 'tool_calls', message: { role: 'assistant', content: null, tool_calls: [custom] } }] }) })
  const request = { model, messages: user('x'), tool_choice: 'required', tools: [{ type: 'custom', custom: { name: 'run' } }] }
  const got = await client().chat.completions.create(request)
  assert.deepEqual(got.choices[0].message.tool_calls, [custom])
  assert.equal((await seen(model))[0].body, JSON.stringify(request))
})
