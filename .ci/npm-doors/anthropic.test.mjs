// @anthropic-ai/sdk: messages, plain and by the stream helper.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import Anthropic from '@anthropic-ai/sdk'
import { base, fails, weather } from './helpers.mjs'

const client = new Anthropic({ baseURL: base, apiKey: 'the-caller', maxRetries: 0, timeout: 20_000 })
const ask = (model, text, more = {}) => ({ model, max_tokens: 100, messages: [{ role: 'user', content: text }], ...more })
const tools = [{ name: 'weather', description: 'x', input_schema: weather }]

test('plain and streamed', async () => {
  const plain = await client.messages.create(ask('demo/echo', 'hello onion'))
  assert.equal(plain.content[0].text, 'hello onion')
  const stream = client.messages.stream(ask('demo/echo', 'hello onion'))
  const texts = []
  stream.on('text', t => texts.push(t))
  const final = await stream.finalMessage()
  assert.equal(final.content[0].text, 'hello onion')
  assert.equal(texts.join(''), 'hello onion')
  assert.equal(final.stop_reason, 'end_turn')
  assert.ok(final.usage.output_tokens > 0)
})

test('tools, plain and streamed', async () => {
  for (const r of [await client.messages.create(ask('demo/tools', 'Paris', { tools })),
    await client.messages.stream(ask('demo/tools', 'Paris', { tools })).finalMessage()]) {
    const call = r.content.find(b => b.type === 'tool_use')
    assert.deepEqual([call.name, call.input.city, r.stop_reason], ['weather', 'Paris', 'tool_use'])
  }
})

test('errors, abort, tokens, models', async () => {
  const e = await fails(() => client.messages.create(ask('demo/fail', 'fail 429')))
  assert.ok(e instanceof Anthropic.RateLimitError, `${e}`)
  await fails(() => client.messages.stream(ask('demo/fail', 'fail cut 3')).finalMessage())
  const stream = client.messages.stream(ask('demo/slow', 'w '.repeat(300)))
  stream.on('text', () => stream.abort())
  assert.ok((await fails(() => stream.finalMessage())) instanceof Anthropic.APIUserAbortError)
  assert.ok((await client.messages.countTokens(ask('demo/echo', 'x'))).input_tokens > 0)
  const ids = []
  for await (const m of client.models.list()) ids.push(m.id)
  assert.ok(ids.includes('demo/echo'))
})
