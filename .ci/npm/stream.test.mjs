// Streams: what arrives, when it arrives, how it ends.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI from 'openai'
import { abandoned, base, chunk, client, fails, reply, script, seen, toModel, usageChunk, user, words } from './helpers.mjs'

const text = 'Eine Zwiebel 🧅 hat viele Schichten, und 世界 auch. '

async function collect(stream) {
  const chunks = []
  for await (const c of stream) chunks.push(c)
  return { chunks, text: chunks.map(c => c.choices[0]?.delta?.content ?? '').join('') }
}

test('for await: the text, one id, one finish reason, no usage unless asked', async () => {
  const model = await script('stream', { chunks: [...words(text), usageChunk] })
  const request = { model, messages: user('hi'), stream: true, temperature: 0 }
  const got = await collect(await client().chat.completions.create(request))
  assert.equal(got.text, text)
  assert.deepEqual(new Set(got.chunks.map(c => `${c.id} ${c.object} ${c.created} ${c.model}`)).size, 1)
  assert.equal(got.chunks[0].choices[0].delta.role, 'assistant')
  assert.deepEqual(got.chunks.map(c => c.choices[0]?.finish_reason).filter(Boolean), ['stop'])
  assert.equal(got.chunks.at(-1).choices[0].finish_reason, 'stop')
  assert.ok(got.chunks.every(c => c.usage == null && c.choices.length === 1))
  assert.equal((await seen(model))[0].body, JSON.stringify(request))
})

test('include_usage: one last chunk without choices holds it', async () => {
  const model = await script('usage', { chunks: [...words(text), usageChunk] })
  const got = await collect(await client().chat.completions.create({ model, messages: user('hi'), stream: true, stream_options: { include_usage: true } }))
  assert.equal(got.text, text)
  assert.deepEqual(got.chunks.at(-1).choices, [])
  assert.equal(got.chunks.at(-1).usage.total_tokens, 5)
  assert.equal(got.chunks.filter(c => c.usage).length, 1)
})

test('the helper: finalChatCompletion, finalContent, totalUsage', async () => {
  const model = await script('helper', { chunks: [...words(text), usageChunk] })
  const stream = client().chat.completions.stream({ model, messages: user('hi'), stream_options: { include_usage: true } })
  const snapshots = []
  stream.on('content', (_, snapshot) => snapshots.push(snapshot))
  const done = await stream.finalChatCompletion()
  assert.equal(done.choices[0].message.content, text)
  assert.equal(await stream.finalContent(), text)
  assert.equal((await stream.totalUsage()).total_tokens, 5)
  assert.equal(snapshots.at(-1), text)
})

test('the raw events: framing, [DONE] once and last, headers', async () => {
  const model = await script('framing', { chunks: [': keep-alive\n\n', ...words('a b'), ': more\n\n'], headers: { 'x-ratelimit-remaining-requests': '9' } })
  const res = await fetch(`${base}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ model, messages: user('x'), stream: true }) })
  assert.equal(res.status, 200)
  assert.match(res.headers.get('content-type'), /^text\/event-stream/)
  assert.match(res.headers.get('shallot-call'), /^[0-9a-f-]{36}$/)
  const raw = await res.text()
  assert.ok(raw.endsWith('data: [DONE]\n\n'))
  const events = raw.split('\n\n').filter(Boolean).filter(e => !e.startsWith(':'))
  assert.ok(events.every(e => e.startsWith('data: ') && !e.includes('\n')), raw)
  assert.equal(events.filter(e => e.includes('[DONE]')).length, 1)
})

test('tokens arrive as they come, not at the end', async () => {
  const model = await script('pace', { chunks: words('one two three four five six '), pace: 150 })
  const begin = Date.now()
  let first = 0
  for await (const c of await client().chat.completions.create({ model, messages: user('hi'), stream: true })) {
    if (c.choices[0]?.delta?.content && !first) first = Date.now() - begin
  }
  const all = Date.now() - begin
  assert.ok(first < all - 500, `first ${first} of ${all} ms`)
})

test('parallel tool calls whose deltas come interleaved', async () => {
  const call = (index, more) => chunk({ tool_calls: [{ index, ...more }] })
  const model = await script('tools', { chunks: [
    chunk({ role: 'assistant', content: null }),
    call(0, { id: 'call_a', type: 'function', function: { name: 'weather', arguments: '' } }),
    call(1, { id: 'call_b', type: 'function', function: { name: 'time', arguments: '' } }),
    call(0, { function: { arguments: '{"city":' } }), call(1, { function: { arguments: '{"zone":"' } }),
    call(0, { function: { arguments: '"Köln"}' } }), call(1, { function: { arguments: 'CET"}' } }),
    chunk({}, 'tool_calls')] })
  const tools = ['weather', 'time'].map(name => ({ type: 'function', function: { name, parameters: { type: 'object', properties: {} } } }))
  const done = await client().chat.completions.stream({ model, messages: user('hi'), tools }).finalChatCompletion()
  assert.deepEqual(done.choices[0].message.tool_calls.map(t => [t.id, t.function.name, t.function.arguments]),
    [['call_a', 'weather', '{"city":"Köln"}'], ['call_b', 'time', '{"zone":"CET"}']])
  assert.equal(done.choices[0].finish_reason, 'tool_calls')
})

test('two choices interleaved', async () => {
  const model = await script('choices', { chunks: [
    chunk({ role: 'assistant', content: '' }), chunk({ role: 'assistant', content: '' }, null, 1), chunk({ content: 'a1' }), chunk({ content: 'b1' }, null, 1),
    chunk({ content: ' a2' }), chunk({}, 'stop'), chunk({ content: ' b2' }, null, 1), chunk({}, 'length', 1)] })
  const done = await client().chat.completions.stream({ model, messages: user('hi'), n: 2 }).finalChatCompletion()
  assert.deepEqual(done.choices.map(c => [c.index, c.message.content, c.finish_reason]), [[0, 'a1 a2', 'stop'], [1, 'b1 b2', 'length']])
})

test('fields of other vendors in deltas and a refusal pass', async () => {
  const model = await script('vendor', { chunks: [
    chunk({ role: 'assistant', reasoning_content: 'hm, ' }), chunk({ reasoning_content: 'yes' }), chunk({ content: 'ok' }), chunk({}, 'stop')] })
  const got = await collect(await client().chat.completions.create({ model, messages: user('hi'), stream: true }))
  assert.equal(got.chunks.map(c => c.choices[0]?.delta?.reasoning_content ?? '').join(''), 'hm, yes')
  assert.equal(got.text, 'ok')
  const refusing = await script('refusal', { chunks: [chunk({ role: 'assistant', refusal: 'I will' }), chunk({ refusal: ' not.' }), chunk({}, 'stop')] })
  const done = await client().chat.completions.stream({ model: refusing, messages: user('hi') }).finalChatCompletion()
  assert.equal(done.choices[0].message.refusal, 'I will not.')
})

test('a provider that answers a stream with one JSON reply is replayed as a stream', async () => {
  const model = await script('whole', { body: reply(text) })
  const got = await collect(await client().chat.completions.create({ model, messages: user('hi'), stream: true, stream_options: { include_usage: true } }))
  assert.equal(got.text, text)
  assert.equal(got.chunks.at(-1).usage.total_tokens, 5)
})

for (const end of ['cut', 'close', 'hang']) {
  test(`a stream that ends with ${end} after some text is an error, never a success`, async () => {
    const model = await script(`broken-${end}`, { chunks: words(text).slice(0, 5), end }, { 'standby-a': { chunks: words('another answer') } })
    let got = ''
    const e = await fails(async () => {
      for await (const c of await client().chat.completions.create({ model, messages: user('hi'), stream: true })) got += c.choices[0]?.delta?.content ?? ''
    })
    assert.ok(e instanceof OpenAI.APIError, `${e}`)
    assert.equal(e.code, 'stream_cut')
    assert.ok(text.startsWith(got) && got !== '', got)
    assert.equal((await seen(model)).length, 1, 'nothing is bought again after the first token')
    const res = await fetch(`${base}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ model, messages: user('raw'), stream: true }) })
    assert.ok(!(await res.text()).includes('[DONE]'))
  })
}

test('an error event within a stream is an error', async () => {
  const model = await script('event', { chunks: [...words(text).slice(0, 4), JSON.stringify({ error: { message: 'overheated', type: 'server_error', code: null } })], end: 'close' })
  const e = await fails(() => client().chat.completions.stream({ model, messages: user('hi') }).finalChatCompletion())
  assert.ok(e instanceof OpenAI.OpenAIError)
  assert.match(e.message, /overheated|stream/)
})

test('before the first token a stream falls over to the standby', async () => {
  for (const first of [{ status: 500, body: '{"error":{"message":"down"}}' }, { chunks: [chunk({ role: 'assistant', content: '' })], end: 'cut' }, { chunks: [chunk({ role: 'assistant', content: '' }), chunk({}, 'stop')] }]) {
    const model = await script('failover', first, { 'standby-a': { chunks: words(text) } })
    const { data, response } = await client().chat.completions.create({ model, messages: user('hi'), stream: true, seed: 7 }).withResponse()
    const got = await collect(data)
    assert.equal(got.text, text)
    assert.equal(response.status, 200)
    const all = await seen(model)
    const standby = all.filter(r => r.model === 'standby-a')
    assert.equal(standby.length, 1)
    assert.equal(standby[0].body, JSON.stringify({ model: 'standby-a', messages: user('hi'), stream: true, seed: 7 }))
  }
})

test('abort of a stream cancels the upstream within a second', async () => {
  const model = await script('abort', { chunks: words('word '.repeat(500)), pace: 50 })
  const abort = new AbortController()
  const stream = await client().chat.completions.create({ model, messages: user('hi'), stream: true }, { signal: abort.signal })
  let at = 0
  for await (const c of stream) {
    if (c.choices[0]?.delta?.content && !at) {
      at = Date.now()
      abort.abort()
    }
  }
  const r = await abandoned(model)
  assert.ok(r.closed - at < 1000, `${r.closed - at} ms`)
  assert.equal((await toModel(model)).length, 1)
})

test('break out of the loop cancels the upstream too', async () => {
  const model = await script('break', { chunks: words('word '.repeat(500)), pace: 50 })
  for await (const c of await client().chat.completions.create({ model, messages: user('hi'), stream: true })) {
    if (c.choices[0]?.delta?.content) break
  }
  const at = Date.now()
  const r = await abandoned(model)
  assert.ok(r.closed - at < 1000, `${r.closed - at} ms`)
})
