// A plain NATS client: an OpenAI chat body in, the reply out, nothing of Shallot known but the subject.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { connect, createInbox, headers } from '@nats-io/transport-node'
import { chunk, failure, natsURL, reply, script, seen, toModel, unique, usageChunk, user, words } from './helpers.mjs'

const subject = 'shallot.v1.model.request'
let nc
before(async () => { nc = await connect({ servers: natsURL, timeout: 5000 }) })
after(() => nc?.close())

const head = fields => {
  const h = headers()
  for (const [k, v] of Object.entries(fields)) h.set(k, v)
  return h
}
const ask = (body, fields) => nc.request(subject, typeof body === 'string' ? body : JSON.stringify(body), { timeout: 15_000, ...(fields && { headers: head(fields) }) })

/** Everything that comes for one request, up to the empty message that ends a stream. */
async function stream(body, fields) {
  const inbox = createInbox()
  const sub = nc.subscribe(inbox, { timeout: 15_000 })
  nc.publish(subject, JSON.stringify(body), { reply: inbox, ...(fields && { headers: head(fields) }) })
  const got = []
  for await (const m of sub) {
    if (m.data.length === 0) break
    got.push(m)
  }
  return got
}

test('a bare chat body: the reply byte for byte, with the answer headers', async () => {
  const body = reply('Grüße 🧅', { odd: 12345678901234567890n.toString() })
  const model = await script('nats', { body })
  const sent = `{"model":"${model}","messages":[{"role":"user","content":"hi"}],"temperature":0,"seed":9007199254740993}`
  const m = await ask(sent)
  assert.equal(m.string(), body)
  assert.match(m.headers.get('Shallot-Call'), /^[0-9a-f-]{36}$/)
  assert.match(m.headers.get('Shallot-Path'), /audit/)
  assert.equal((await seen(model))[0].body, sent)
})

test('trace and request id go through', async () => {
  const model = await script('nats-ids', { body: reply('x') })
  const m = await ask({ model, messages: user('hi') }, { traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', 'X-Request-Id': 'req-n' })
  assert.equal(m.headers.get('X-Request-Id'), 'req-n')
  const [r] = await seen(model)
  assert.equal(r.headers['x-request-id'], 'req-n')
  assert.match(r.headers.traceparent, /^00-0af7651916cd43dd8448eb211c80319c-/)
})

test('stream: one message a chunk, an empty one at the end', async () => {
  const model = await script('nats-stream', { chunks: [...words('one two three'), usageChunk] })
  const got = await stream({ model, messages: user('hi'), stream: true, stream_options: { include_usage: true } })
  const chunks = got.map(m => m.json())
  assert.equal(chunks.map(c => c.choices[0]?.delta?.content ?? '').join(''), 'one two three')
  assert.equal(chunks.at(-1).usage.total_tokens, 5)
  assert.ok(got.every(m => !m.headers?.get('Nats-Service-Error-Code')))
})

test('a stream that breaks: an error, then the empty message', async () => {
  const model = await script('nats-cut', { chunks: [chunk({ role: 'assistant', content: 'half' })], end: 'cut' })
  const got = await stream({ model, messages: user('hi'), stream: true })
  assert.equal(got[0].json().choices[0].delta.content, 'half')
  assert.equal(got.at(-1).headers.get('Shallot-Fault'), 'stream_cut')
  assert.equal(got.at(-1).json().error.code, 'stream_cut')
})

test('errors: the service headers and the OpenAI body', async () => {
  for (const [answer, status, code, fault] of [
    [failure(400, 'bad', 'out of range', {}, 'invalid_request_error'), '400', 'bad', 'provider_rejected'],
    [failure(429, null, 'slow', { 'retry-after': '3' }, 'requests'), '429', 'rate_limit_exceeded', 'provider_limited'],
    [failure(401, null, 'no'), '502', 'provider_auth', 'provider_auth'],
  ]) {
    const model = await script('nats-error', answer)
    const m = await ask({ model, messages: user('hi') })
    assert.equal(m.headers.get('Nats-Service-Error-Code'), status)
    assert.ok(m.headers.get('Nats-Service-Error'))
    assert.equal(m.headers.get('Shallot-Fault'), fault)
    assert.equal(m.json().error.code, code)
  }
  for (const body of ['', 'no json', '{"model":"x"}', '[]']) {
    const m = await ask(body)
    assert.equal(m.headers.get('Nats-Service-Error-Code'), '400', body)
    assert.equal(m.headers.get('Shallot-Fault'), 'invalid_request')
  }
})

test('Nats-Msg-Id buys once; another body with it is refused', async () => {
  const model = await script('nats-once', { body: reply('bought'), wait: 200 })
  const id = unique('msg')
  const both = await Promise.all([1, 2].map(() => ask({ model, messages: user('a') }, { 'Nats-Msg-Id': id })))
  both.push(await ask({ model, messages: user('a') }, { 'Nats-Msg-Id': id }))
  for (const m of both) assert.equal(m.string(), reply('bought'))
  assert.equal((await toModel(model)).length, 1)
  const m = await ask({ model, messages: user('b') }, { 'Nats-Msg-Id': id })
  assert.equal(m.headers.get('Nats-Service-Error-Code'), '422')
  assert.equal(m.headers.get('Shallot-Fault'), 'idempotency_mismatch')
})

test('submit: accepted at once, the result by its subject', async () => {
  const model = await script('nats-submit', { body: reply('later'), wait: 200 })
  const m = await nc.request('shallot.v1.model.submit', JSON.stringify({ model, messages: user('hi') }), { timeout: 5000 })
  assert.equal(m.headers.get('Shallot-Status'), 'accepted')
  const { result } = m.json()
  for (let i = 0; ; i++) {
    const r = await nc.request(result, '', { timeout: 5000 })
    if (r.headers?.get('Shallot-Status') !== 'running') {
      assert.equal(r.string(), reply('later'))
      break
    }
    assert.ok(i < 50, 'no result')
    await new Promise(done => setTimeout(done, 100))
  }
  assert.equal((await toModel(model)).length, 1)
})

test('a tool by its subject; a failure is a degraded answer that says so', async () => {
  const tool = async (name, args) => {
    const m = await nc.request(`shallot.v1.tool.request.${name}`, args, { timeout: 10_000 })
    assert.equal(m.headers.get('Nats-Service-Error-Code'), '', m.string())
    return [m.string(), m.headers.get('Shallot-Degraded')]
  }
  const [sum, degraded] = await tool('add', '{"a":0.1,"b":"0.2"}')
  assert.match(sum, /0\.3\b/)
  assert.equal(degraded, '')
  for (const [name, args, code] of [['none-such', '{}', 'tool_not_found'], ['add', '{"a":1}', 'invalid_arguments'], ['add', 'no json', 'invalid_arguments']]) {
    const [text, how] = await tool(name, args)
    assert.equal(how, 'graceful_error')
    assert.equal(JSON.parse(text).error, code)
  }
  assert.equal((await tool('failing', '{"how":"panic"}'))[1], 'stub_data')
})

test('the request of a tenant by its subject', async () => {
  const model = await script('nats-tenant', { body: reply('x') })
  const m = await nc.request('shallot.v1.tenant.acme.model.request', JSON.stringify({ model, messages: user('hi') }), { timeout: 10_000 })
  assert.equal(m.string(), reply('x'))
})

test('a body of 600 kB', async () => {
  const text = '🧅 '.repeat(120_000)
  const model = await script('nats-large', { body: reply(text.slice(0, 300_000)) })
  const sent = JSON.stringify({ model, messages: user(text) })
  const m = await ask(sent)
  assert.ok(m.string() === reply(text.slice(0, 300_000)), 'the reply differs')
  assert.ok((await seen(model))[0].body === sent, 'the request differs')
})

test('a reply of 2 MB does not fit into a message, and says so; as a stream it comes whole', async () => {
  const text = '🧅 "layers" '.repeat(130_000)
  const model = await script('nats-big', { body: reply(text) })
  const m = await ask({ model, messages: user('x') })
  assert.equal(m.headers.get('Nats-Service-Error-Code'), '413')
  for (const answer of [{ body: reply(text) }, { chunks: words(text).slice(0, 1).concat(chunk({ content: text }), chunk({}, 'stop')) }]) {
    const big = await script('nats-big', answer)
    const got = await stream({ model: big, messages: user('x'), stream: true })
    assert.ok(got.every(m => !m.headers?.get('Nats-Service-Error-Code')))
    assert.ok(got.map(m => m.json().choices[0].delta.content ?? '').join('') === text, `${got.length} messages`)
    assert.equal(got.at(-1).json().choices[0].finish_reason, 'stop')
  }
})
