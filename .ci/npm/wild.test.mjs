// What providers send besides the textbook: other framings, odd ends, large pieces. And what callers do.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { abandoned, base, chunk, client, failure, fails, key, reply, script, seen, toModel, unique, until, usageChunk, user, words } from './helpers.mjs'

const stream = async (model, more = {}, options) => {
  const chunks = []
  for await (const c of await client().chat.completions.create({ model, messages: user('hi'), stream: true, ...more }, options)) chunks.push(c)
  return { chunks, text: chunks.map(c => c.choices[0]?.delta?.content ?? '').join(''), finish: chunks.map(c => c.choices[0]?.finish_reason).filter(Boolean), usage: chunks.filter(c => c.usage).map(c => c.usage.total_tokens) }
}
const post = (body, headers = {}) => fetch(`${base}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body: typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body) })

const text = 'Zwiebel 🧅, 世界, e\u0301.'
const framings = {
  'CRLF line ends': words(text).map(c => `data: ${c}\r\n\r\n`).concat('data: [DONE]\r\n\r\n'),
  'no space after the colon': words(text).map(c => `data:${c}\n\n`),
  'event, id and retry lines': words(text).map((c, i) => `event: message\nid: ${i}\nretry: 5\ndata: ${c}\n\n`),
  'an event over several data lines': words(text).map(c => `data: ${JSON.stringify(JSON.parse(c), null, 1).replaceAll('\n', '\ndata: ')}\n\n`),
  'comments all over': words(text).flatMap(c => [': ping\n\n', `: x\ndata: ${c}\n\n`]),
  'a byte order mark': ['\ufeff', ...words(text)],
  'a first chunk without choices': ['{"id":"","object":"chat.completion.chunk","created":0,"model":"","choices":[],"prompt_filter_results":[]}', ...words(text)],
  'a null delta': [...words(text).slice(0, -1), '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"up-1","choices":[{"index":0,"delta":null,"finish_reason":"stop"}]}'],
  'text and finish in one chunk': [chunk({ role: 'assistant', content: text }, 'stop')],
}
for (const [name, chunks] of Object.entries(framings)) {
  test(`stream: ${name}`, async () => {
    const got = await stream(await script('framing', { chunks }))
    assert.equal(got.text, text)
    assert.deepEqual(got.finish, ['stop'])
  })
}

test('stream: one byte at a time, within characters', async () => {
  const got = await stream(await script('bytes', { chunks: words(text), bytes: 1 }))
  assert.equal(got.text, text)
})

test('stream: finished, but without [DONE]', async () => {
  const got = await stream(await script('no-done', { chunks: words(text), end: 'close' }))
  assert.equal(got.text, text)
  assert.deepEqual(got.finish, ['stop'])
})

test('stream: usage in the last choice, and in each chunk', async () => {
  const withUsage = (c, n) => JSON.stringify({ ...JSON.parse(c), usage: { prompt_tokens: 3, completion_tokens: n, total_tokens: 3 + n } })
  const list = words('a b')
  for (const chunks of [[...list.slice(0, -1), withUsage(list.at(-1), 2)], list.map((c, i) => withUsage(c, i)).slice(0, -1).concat(withUsage(list.at(-1), 2))]) {
    const asked = await stream(await script('usage', { chunks }), { stream_options: { include_usage: true } })
    assert.equal(asked.text, 'a b')
    assert.equal(asked.usage.at(-1), 5)
    assert.deepEqual((await stream(await script('usage', { chunks }))).text, 'a b')
  }
})

test('stream: tool calls without index, whole in one delta, with the id repeated', async () => {
  const call = (id, name, args) => ({ id, type: 'function', function: { name, arguments: args } })
  const done = async chunks => (await client().chat.completions.stream({ model: await script('odd-tools', { chunks: [...chunks, chunk({}, 'tool_calls')] }), messages: user('x') }).finalChatCompletion())
    .choices[0].message.tool_calls.map(t => [t.id, t.function.name, t.function.arguments])
  assert.deepEqual(await done([chunk({ role: 'assistant', tool_calls: [{ index: 0, ...call('a', 'f', '{"x":1}') }, { index: 1, ...call('b', 'g', '{}') }] })]), [['a', 'f', '{"x":1}'], ['b', 'g', '{}']])
  assert.deepEqual(await done([chunk({ role: 'assistant', tool_calls: [{ index: 0, ...call('a', 'f', '{"x"') }] }), chunk({ tool_calls: [{ index: 0, id: 'a', function: { arguments: ':1}' } }] })]), [['a', 'f', '{"x":1}']])
})

test('stream: 6,000 chunks, all of them, in order', async () => {
  const all = Array.from({ length: 6000 }, (_, i) => `${i} `).join('')
  const got = await stream(await script('chunks', { chunks: words(all) }))
  assert.ok(got.text === all, `${got.text.length} of ${all.length}`)
})

test('stream: one chunk of 2 MB', async () => {
  const big = 'onion '.repeat(350_000)
  const got = await stream(await script('big-chunk', { chunks: [chunk({ role: 'assistant', content: 'first ' }), chunk({ content: big }), chunk({ content: 'last' }), chunk({}, 'stop')] }))
  assert.ok(got.text === `first ${big}last`, `${got.text.length}`)
})

test('stream: 60 at once, each its own text', async () => {
  const models = await Promise.all(Array.from({ length: 60 }, (_, i) => script('at-once', { chunks: words(`answer number ${i} of many`), pace: 5 })))
  const got = await Promise.all(models.map(m => stream(m)))
  assert.deepEqual(got.map(g => g.text), models.map((_, i) => `answer number ${i} of many`))
})

test('stream: the same Idempotency-Key joins and replays, and buys once', async () => {
  const model = await script('stream-once', { chunks: [...words('one two three four'), usageChunk], pace: 60 })
  const options = { headers: { 'Idempotency-Key': unique('key') } }
  const both = await Promise.all([stream(model, {}, options), stream(model, {}, options)])
  both.push(await stream(model, {}, options))
  assert.deepEqual(both.map(b => b.text), Array(3).fill('one two three four'))
  assert.equal((await toModel(model)).length, 1)
})

test('an error with status 200 is an error', async () => {
  const e = await fails(async () => client().chat.completions.create({ model: await script('error-200', { body: '{"error":{"message":"quota","type":"insufficient_quota","code":"insufficient_quota"}}' }), messages: user('x') }))
  assert.equal(e.status, 429)
  assert.equal(e.code, 'insufficient_quota')
})

test('errors of other shapes keep their words', async () => {
  for (const body of ['{"error":"model is loading"}', '{"object":"error","message":"model is loading","type":"BadRequestError","code":400}', '{"message":"model is loading"}']) {
    const e = await fails(async () => client().chat.completions.create({ model: await script('shape', { status: 400, body }), messages: user('x') }))
    assert.equal(e.status, 400)
    assert.match(e.message, /model is loading/)
  }
})

test('a redirect is not followed', async () => {
  const e = await fails(async () => client().chat.completions.create({ model: await script('redirect', { status: 307, headers: { location: `${process.env.UPSTREAM_URL}/v1/elsewhere` }, body: '' }), messages: user('x') }))
  assert.equal(e.code, 'provider_bad_reply')
})

test('our key in the words of the provider is taken out', async () => {
  const hasKey = failure(400, 'bad', `wrong with key ${key} here`, { 'x-request-id': key, 'x-ratelimit-reset-tokens': key }, 'invalid_request_error')
  const e = await fails(async () => client().chat.completions.create({ model: await script('leak', hasKey), messages: user('x') }))
  assert.match(e.message, /wrong with key/)
  assert.ok(!JSON.stringify([e.message, e.error, [...e.headers]]).includes(key))
  const model = await script('leak', { chunks: [...words('a b').slice(0, 2), JSON.stringify({ error: { message: `key ${key}`, code: 'x' } })], end: 'close' })
  assert.ok(!(await (await post({ model, messages: user('x'), stream: true })).text()).includes(key))
})

test('an empty reply falls over; if no standby has one, it goes out as it is', async () => {
  const empty = { body: reply('') }
  const over = await client().chat.completions.create({ model: await script('empty', empty, { 'standby-a': { body: reply('full') } }), messages: user('x') })
  assert.equal(over.choices[0].message.content, 'full')
  const model = await script('empty', empty)
  const { data, response } = await client().chat.completions.create({ model, messages: user('x') }).withResponse()
  assert.equal(data.choices[0].message.content, '')
  assert.equal(response.status, 200)
})

test('model names: the provider prefix is taken off, other text is left', async () => {
  const model = await script('prefix', { body: reply('x') })
  await client().chat.completions.create({ model: `openai/${model}`, messages: user('x') })
  assert.equal(JSON.parse((await seen(model))[0].body).model, model)
  for (const name of ['org/model:7b@q4', 'modèle 🧅']) {
    const m = await script(name, { body: reply('y') })
    assert.equal((await client().chat.completions.create({ model: m, messages: user('x') })).choices[0].message.content, 'y')
    assert.equal(JSON.parse((await seen(m))[0].body).model, m)
  }
})

test('a call of a session keeps every field but the messages', async () => {
  const model = await script('session', [{ body: reply('one') }, { chunks: words('two words') }])
  const body = more => `{"seed":9007199254740993,"model":"${model}","temperature":0,"messages":[{"role":"user","content":[{"type":"text","text":"hi"}],"odd":1.0}],"x":{"b":1.50,"a":2},"metadata":{"session_id":"s 1"}${more}}`
  const session = unique('s')
  const a = await post(body(''), { 'Shallot-Session': session })
  assert.equal(await a.text(), reply('one'))
  const b = await (await post(body(',"stream":true'), { 'Shallot-Session': session })).text()
  assert.ok(b.includes('"two "') && b.endsWith('data: [DONE]\n\n'), b)
  for (const r of await seen(model)) {
    assert.ok(r.body.includes('{"seed":9007199254740993,') && r.body.includes('"x":{"b":1.50,"a":2}') && r.body.includes('"temperature":0,'), r.body)
    assert.ok(r.body.includes('{"role":"user","content":[{"type":"text","text":"hi"}],"odd":1.0}'), r.body)
  }
  assert.equal((await post(body(''))).status, 200, 'metadata.session_id is a label, and any text may be one')
})

test('respond-async: accepted, and the result later; the caller may go', async () => {
  const model = await script('async', { body: reply('later'), wait: 300 })
  const res = await post({ model, messages: user('x') }, { prefer: 'respond-async' })
  assert.equal(res.status, 202)
  const at = res.headers.get('location')
  assert.match(at, /^\/v1\/results\//)
  const done = await until('the result', async () => {
    const r = await fetch(base + at, { headers: { prefer: 'wait=5' } })
    return r.status === 200 && r
  })
  assert.equal(await done.text(), reply('later'))
  assert.equal((await toModel(model)).length, 1)
})

test('a caller with an Idempotency-Key who leaves finds the bought answer later', async () => {
  const model = await script('back', { body: reply('kept'), wait: 700 })
  const options = { headers: { 'Idempotency-Key': unique('key') } }
  const abort = new AbortController()
  const first = fails(() => client().chat.completions.create({ model, messages: user('x') }, { ...options, signal: abort.signal }))
  await until('the upstream is asked', async () => (await seen(model)).length)
  abort.abort()
  await first
  const again = await client({ maxRetries: 2 }).chat.completions.create({ model, messages: user('x') }, options)
  assert.equal(again.choices[0].message.content, 'kept')
})

test('curl without a content type, and a body in gzip', async () => {
  const model = await script('curl', { body: reply('x') })
  const body = JSON.stringify({ model, messages: user('x') })
  assert.equal((await post(body, { 'content-type': 'application/x-www-form-urlencoded' })).status, 200)
  assert.equal((await post(gzipSync(body), { 'content-encoding': 'gzip' })).status, 200)
  assert.equal((await post(body, { 'content-encoding': 'br' })).status, 415)
  assert.ok((await seen(model)).every(r => r.body === body))
})

test('leaving a stream before its first token cancels the upstream', async () => {
  const model = await script('early', { chunks: [': waiting\n\n'], end: 'hang' })
  const abort = new AbortController()
  const first = fails(() => client().chat.completions.create({ model, messages: user('x'), stream: true }, { signal: abort.signal }))
  await until('the upstream is asked', async () => (await seen(model)).length)
  const at = Date.now()
  abort.abort()
  await first
  assert.ok((await abandoned(model)).closed - at < 1000)
  assert.equal((await seen(model)).length, 1)
})
