// What the compliance suite of Open Responses looks for, and a little more: every object has its keys, every stream its
// order. The suite itself is not on npm; this is one of our own, from the facts of the specification.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { script, v1 } from './helpers.mjs'
import { compaction, event, response } from './schema.mjs'

const message = (role, content) => ({ type: 'message', role, content })
const weather = { type: 'function', name: 'weather', parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } }

async function post(path, body) {
  const res = await fetch(v1 + path, { method: 'POST', headers: { 'content-type': 'application/json', authorization: 'Bearer the-caller' }, body: JSON.stringify(body) })
  assert.equal(res.status, 200, await (res.ok ? '' : res.text()))
  return res
}

const plain = async body => response.parse(await (await post('/responses', body)).json())

/** The events of a stream: each of a known shape, in the order that holds for every stream. Returns them and the last response. */
async function streamed(body) {
  const res = await post('/responses', { ...body, stream: true })
  assert.match(res.headers.get('content-type'), /^text\/event-stream/)
  const events = []
  for (const block of (await res.text()).split('\n\n')) {
    const lines = block.split('\n').filter(l => l && !l.startsWith(':'))
    if (!lines.length) continue
    const data = lines.filter(l => l.startsWith('data: ')).map(l => l.slice(6)).join('\n')
    if (data === '[DONE]') continue
    const e = event.parse(JSON.parse(data))
    assert.equal(lines.find(l => l.startsWith('event: ')), `event: ${e.type}`)
    events.push(e)
  }
  inOrder(events)
  return { events, types: events.map(e => e.type), last: events.at(-1).response }
}

/** The lifecycle of a response, of its items, and of their parts. */
function inOrder(events) {
  assert.deepEqual(events.map(e => e.sequence_number), events.map((_, i) => i))
  assert.equal(events[0].type, 'response.created')
  assert.match(events.at(-1).type, /^response\.(completed|incomplete|failed)$/)
  const ids = new Set(events.filter(e => e.response).map(e => e.response.id))
  assert.equal(ids.size, 1, 'one response has one id')
  const items = []
  for (const e of events) {
    if (e.type === 'response.output_item.added') {
      assert.equal(e.output_index, items.length, 'no gap between the items')
      items.push({ ...e.item, parts: [], said: '' })
    }
    if (e.output_index === undefined) continue
    const it = items[e.output_index]
    assert.ok(it, `${e.type} before its item`)
    assert.ok(!it.over, `${e.type} after the end of its item`)
    assert.equal(e.item_id ?? e.item.id, it.id)
    const index = e.content_index ?? e.summary_index
    if (e.type.endsWith('part.added')) {
      assert.equal(index, it.parts.length)
      it.parts.push('')
    } else if (index !== undefined) {
      assert.ok(index < it.parts.length, `${e.type} before its part`)
    }
    if (e.type.endsWith('.delta')) index === undefined ? it.said += e.delta : it.parts[index] += e.delta
    if (e.type.endsWith('arguments.done')) assert.equal(it.said, e.arguments)
    if (/(text|refusal)\.done$/.test(e.type)) assert.equal(it.parts[index], e.text ?? e.refusal)
    if (e.type.endsWith('part.done')) assert.equal(it.parts[index], e.part.text ?? e.part.refusal)
    if (e.type === 'response.output_item.done') {
      it.over = true
      assert.equal(e.item.type, it.type)
      if (it.call_id) assert.equal(e.item.call_id, it.call_id)
      it.final = e.item
    }
  }
  const last = events.at(-1)
  if (last.type !== 'response.failed') assert.deepEqual(last.response.output, items.map(i => i.final), 'the end repeats every item')
}

test('a text', async () => {
  const r = await plain({ model: 'demo/echo', input: [message('user', 'hello onion')] })
  assert.deepEqual([r.status, r.output.length, r.output[0].content[0].text], ['completed', 1, 'hello onion'])
  assert.ok(r.completed_at >= r.created_at)
  assert.equal((await plain({ model: 'demo/echo', input: 'hello onion' })).output[0].content[0].text, 'hello onion')
})

test('a stream', async () => {
  const { types, last } = await streamed({ model: 'demo/echo', input: [message('user', 'one two three')] })
  assert.equal(last.status, 'completed')
  assert.deepEqual(types.filter(t => !t.endsWith('delta')), ['response.created', 'response.in_progress', 'response.output_item.added',
    'response.content_part.added', 'response.output_text.done', 'response.content_part.done', 'response.output_item.done', 'response.completed'])
})

test('a system message, and instructions', async () => {
  const r = await plain({ model: 'demo/echo', input: [message('system', 'be kind'), message('developer', 'be brief'), message('user', 'hello')] })
  assert.equal(r.status, 'completed')
  assert.equal((await plain({ model: 'demo/echo', instructions: 'be kind', input: 'hello' })).instructions, 'be kind')
})

test('a tool, plain and streamed, and the turn after', async () => {
  const ask = { model: 'demo/tools', input: [message('user', 'Paris')], tools: [weather] }
  const r = await plain(ask)
  assert.deepEqual(r.output.map(i => [i.type, i.name, JSON.parse(i.arguments).city]), [['function_call', 'weather', 'Paris']])
  const { types, events } = await streamed(ask)
  for (const type of ['response.function_call_arguments.delta', 'response.function_call_arguments.done']) assert.ok(types.includes(type), type)
  for (const type of ['added', 'done']) assert.equal(events.find(e => e.type === `response.output_item.${type}`).item.type, 'function_call')
  const output = { type: 'function_call_output', call_id: r.output[0].call_id, output: 'sunny' }
  assert.equal((await plain({ ...ask, input: [...ask.input, ...r.output, output] })).output[0].content[0].text, 'sunny')
  assert.equal((await plain({ ...ask, input: [output], previous_response_id: r.id })).output[0].content[0].text, 'sunny')
})

test('an image', async () => {
  const image = { type: 'input_image', image_url: 'data:image/png;base64,iVBORw0KGgo=' }
  assert.equal((await plain({ model: 'demo/echo', input: [message('user', [{ type: 'input_text', text: 'see' }, image])] })).output[0].content[0].text, 'see')
})

test('several turns', async () => {
  const input = [message('user', 'my name is Ada'), message('assistant', 'hello Ada'), message('user', 'who am I?')]
  assert.equal((await plain({ model: 'demo/echo', input })).output[0].content[0].text, 'who am I?')
})

test('every setting comes back whole', async () => {
  const set = { tool_choice: { type: 'function', name: 'weather' }, parallel_tool_calls: false, temperature: 0.5, top_p: 0.25, max_output_tokens: 100,
    max_tool_calls: 3, metadata: { a: 'b' }, safety_identifier: 's', prompt_cache_key: 'k', truncation: 'auto' }
  for (const store of [true, false]) {
    const r = await plain({ model: 'demo/tools', input: 'Paris', tools: [weather], ...set, store, reasoning: { effort: 'low' },
      text: { format: { type: 'json_schema', name: 'x', schema: { type: 'object' } } } })
    for (const [key, value] of Object.entries(set)) assert.deepEqual(r[key], value, key)
    assert.deepEqual([r.store, r.text.format.name, r.reasoning.effort, r.tools[0].name], [store, 'x', 'low', 'weather'])
  }
})

test('in the background: queued, its events, its end', async () => {
  const r = await plain({ model: 'demo/slow', input: 'one two three', background: true })
  assert.deepEqual([r.status, r.background], ['queued', true])
  const end = await streamed({ model: 'demo/slow', input: 'one two three', background: true })
  assert.equal(end.last.background, true)
  const cancelled = response.parse(await (await post(`/responses/${r.id}/cancel`, {})).json())
  assert.ok(['cancelled', 'completed'].includes(cancelled.status))
})

test('a compaction', async () => {
  const r = compaction.parse(await (await post('/responses/compact', { model: 'demo/echo', input: [message('user', 'one'), message('assistant', 'two'), message('user', 'three')] })).json())
  assert.deepEqual(r.output.map(i => i.type), ['message', 'message', 'compaction'])
  assert.match((await plain({ model: 'demo/echo', input: [...r.output, message('user', 'four')] })).output[0].content[0].text, /^one\nthree\nSummary[^]*\nfour$/)
})

// The rest is said by an upstream that does as it is told, over chat completions.
const usage = { prompt_tokens: 9, completion_tokens: 4, total_tokens: 13, prompt_tokens_details: { cached_tokens: 5 }, completion_tokens_details: { reasoning_tokens: 3 } }
const reply = (model, message, finish_reason) => ({ body: JSON.stringify({ id: 'c', object: 'chat.completion', created: 1, model, choices: [{ index: 0, message: { role: 'assistant', content: null, ...message }, finish_reason }], usage }) })
const chunks = (model, deltas, finish_reason) => {
  const chunk = rest => `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 1, model, ...rest })}\n\n`
  return { chunks: [...deltas.map(delta => chunk({ choices: [{ index: 0, delta, finish_reason: null }] })),
    chunk({ choices: [{ index: 0, delta: {}, finish_reason }] }), chunk({ choices: [], usage })], end: 'done' }
}

test('an answer that was cut short, a refusal, reasoning: plain and streamed, with their usage', { skip: !script && 'no upstream' }, async () => {
  for (const [model, message, finish, check] of [
    ['gpt-short', { content: 'one two' }, 'length', r => assert.deepEqual([r.status, r.incomplete_details], ['incomplete', { reason: 'max_output_tokens' }])],
    ['gpt-filter', { content: 'one' }, 'content_filter', r => assert.deepEqual([r.status, r.incomplete_details], ['incomplete', { reason: 'content_filter' }])],
    ['gpt-refusal', { refusal: 'I will not' }, 'stop', r => assert.deepEqual(r.output[0].content, [{ type: 'refusal', refusal: 'I will not' }])],
    ['gpt-thinker', { reasoning_content: 'hm', content: 'yes' }, 'stop', r => assert.deepEqual(r.output.map(i => i.type), ['reasoning', 'message'])],
  ]) {
    await script(model, [reply(model, message, finish)])
    const r = await plain({ model, input: 'x' })
    check(r)
    await script(model, [chunks(model, Object.entries(message).map(([k, v]) => ({ [k]: v })), finish)])
    const { last } = await streamed({ model, input: 'x' })
    check(last)
    for (const u of [r.usage, last.usage]) {
      assert.deepEqual([u.input_tokens, u.output_tokens, u.total_tokens, u.input_tokens_details.cached_tokens, u.output_tokens_details.reasoning_tokens], [9, 4, 13, 5, 3])
    }
  }
})

test('a stream that breaks ends with response.failed', { skip: !script && 'no upstream' }, async () => {
  await script('gpt-broken', [{ chunks: chunks('gpt-broken', [{ content: 'one ' }], 'stop').chunks.slice(0, 1), end: 'cut' }])
  const { last } = await streamed({ model: 'gpt-broken', input: 'x' })
  assert.equal(last.status, 'failed')
  assert.ok(last.error.message)
})
