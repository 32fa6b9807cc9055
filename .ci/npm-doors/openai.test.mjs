// The openai package, 6 and 7: responses, their strict stream helper, state, background, embeddings.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI6 from 'openai6'
import OpenAI7 from 'openai'
import { fails, required, v1, weather } from './helpers.mjs'

const tools = [{ type: 'function', name: 'weather', description: 'x', parameters: weather, strict: true }]

for (const [name, OpenAI] of Object.entries({ openai6: OpenAI6, openai7: OpenAI7 })) {
  const client = new OpenAI({ baseURL: v1, apiKey: 'the-caller', maxRetries: 0, timeout: 20_000 })

  test(`${name}: plain: text, usage, all fields`, async () => {
    const r = await client.responses.create({ model: 'demo/echo', input: 'hello onion', instructions: 'be kind', metadata: { a: 'b' } })
    assert.equal(r.output_text, 'hello onion')
    assert.deepEqual(required.filter(k => !(k in r)), [])
    assert.ok(r.usage.input_tokens > 0)
    assert.deepEqual([r.store, r.instructions, r.metadata], [true, 'be kind', { a: 'b' }])
  })

  test(`${name}: the strict stream helper`, async () => {
    const seen = []
    const stream = client.responses.stream({ model: 'demo/echo', input: 'eins zwei 🧅' })
    stream.on('event', e => seen.push(e.type))
    const r = await stream.finalResponse()
    assert.equal(r.output_text, 'eins zwei 🧅')
    assert.equal(seen[0], 'response.created')
    assert.equal(seen.at(-1), 'response.completed')
  })

  test(`${name}: tools, plain and streamed, and the turn after`, async () => {
    const ask = { model: 'demo/tools', input: 'Paris', tools }
    const plain = await client.responses.create(ask)
    const streamed = await client.responses.stream(ask).finalResponse()
    for (const r of [plain, streamed]) {
      const call = r.output.find(i => i.type === 'function_call')
      assert.deepEqual([call.name, JSON.parse(call.arguments).city], ['weather', 'Paris'])
      const next = await client.responses.create({ model: 'demo/tools', tools, previous_response_id: r.id,
        input: [{ type: 'function_call_output', call_id: call.call_id, output: 'sunny' }] })
      assert.equal(next.output_text, 'sunny')
      assert.equal(next.previous_response_id, r.id)
    }
  })

  test(`${name}: state: retrieve, input items, item references, delete`, async () => {
    const r = await client.responses.create({ model: 'demo/echo', input: 'remember me' })
    assert.deepEqual((await client.responses.retrieve(r.id)).output, r.output)
    const items = []
    for await (const i of client.responses.inputItems.list(r.id)) items.push(i)
    assert.equal(items[0].content[0].text, 'remember me')
    const next = await client.responses.create({ model: 'demo/echo', input: [{ type: 'item_reference', id: r.output[0].id }, { role: 'user', content: 'so' }] })
    assert.equal(next.output_text, 'so')
    await client.responses.delete(r.id)
    const e = await fails(() => client.responses.retrieve(r.id))
    assert.ok(e instanceof OpenAI.NotFoundError, `${e}`)
  })

  test(`${name}: background: poll, cancel twice, stream and resume`, async () => {
    let r = await client.responses.create({ model: 'demo/slow', input: 'a b c', background: true })
    assert.equal(r.status, 'queued')
    while (['queued', 'in_progress'].includes(r.status)) r = await client.responses.retrieve(r.id)
    assert.equal(r.output_text, 'a b c')
    assert.equal((await client.responses.cancel(r.id)).status, 'completed')

    const long = await client.responses.create({ model: 'demo/slow', input: 'w '.repeat(500), background: true })
    for (let i = 0; i < 2; i++) assert.equal((await client.responses.cancel(long.id)).status, 'cancelled')

    const before = []
    let id
    for await (const e of await client.responses.create({ model: 'demo/slow', input: 'one two three four five', background: true, stream: true })) {
      id ??= e.response.id
      before.push(e)
      if (before.length === 6) break
    }
    const after = []
    for await (const e of await client.responses.retrieve(id, { stream: true, starting_after: before.at(-1).sequence_number })) after.push(e)
    const all = [...before, ...after]
    assert.deepEqual(all.map(e => e.sequence_number), all.map((_, i) => i))
    assert.equal(all.filter(e => e.type === 'response.output_text.delta').map(e => e.delta).join(''), 'one two three four five')
    const again = await client.responses.stream({ response_id: id, starting_after: 4 }).finalResponse()
    assert.equal(again.output_text, 'one two three four five')
  })

  test(`${name}: conversations`, async () => {
    const c = await client.conversations.create({ items: [{ role: 'user', content: 'first' }] })
    await client.responses.create({ model: 'demo/echo', input: 'second', conversation: c.id })
    const texts = []
    for await (const i of client.conversations.items.list(c.id, { order: 'asc' })) texts.push(i.role)
    assert.deepEqual(texts, ['user', 'user', 'assistant'])
    assert.equal((await client.conversations.delete(c.id)).deleted, true)
  })

  test(`${name}: compact`, async () => {
    const r = await client.responses.create({ model: 'demo/echo', input: 'remember me' })
    const c = await client.responses.compact({ model: 'demo/echo', previous_response_id: r.id })
    assert.deepEqual([c.object, c.output.at(-1).type], ['response.compaction', 'compaction'])
    const next = await client.responses.create({ model: 'demo/echo', input: [...c.output, { role: 'user', content: 'so' }] })
    assert.match(next.output_text, /Summary of the conversation[^]*so$/)
  })

  test(`${name}: an agent of the gateway, and an approval`, async () => {
    const asks = await client.responses.stream({ model: 'agent/clerk', input: 'add' }).finalResponse()
    const ask = asks.output.find(i => i.type === 'mcp_approval_request')
    assert.equal(ask.name, 'add')
    const answer = approve => client.responses.stream({ model: 'agent/clerk', previous_response_id: asks.id,
      input: [{ type: 'mcp_approval_response', approval_request_id: ask.id, approve }] }).finalResponse()
    const r = await answer(true)
    assert.equal(r.status, 'completed')
    assert.match(r.output_text, /^{"sum":/)
    assert.equal((await answer(false)).output_text, r.output_text, 'it was decided already')
  })

  test(`${name}: errors: before and within a stream`, async () => {
    const e = await fails(() => client.responses.create({ model: 'demo/fail', input: 'fail 429' }))
    assert.equal(e.status, 429)
    assert.equal((await fails(() => client.responses.create({ model: 'demo/echo', input: 'x', tools: [{ type: 'file_search', vector_store_ids: ['v'] }] }))).status, 400)
    const types = []
    for await (const event of await client.responses.create({ model: 'demo/fail', input: 'fail cut 3', stream: true })) types.push(event.type)
    assert.equal(types.at(-1), 'response.failed')
  })

  test(`${name}: abort ends the stream`, async () => {
    const abort = new AbortController()
    const stream = await client.responses.create({ model: 'demo/slow', input: 'w '.repeat(300), stream: true }, { signal: abort.signal })
    let n = 0
    for await (const e of stream) if (e.type.endsWith('.delta') && ++n === 2) abort.abort()
    assert.ok(n < 20, `${n}`)
  })

  test(`${name}: embeddings: base64 by default, floats when asked`, async () => {
    const a = await client.embeddings.create({ model: 'demo/embed', input: ['red onion', 'b'] })
    const b = await client.embeddings.create({ model: 'demo/embed', input: ['red onion', 'b'], encoding_format: 'float' })
    assert.equal(a.data[1].embedding.length, 64)
    a.data[0].embedding.forEach((x, i) => assert.ok(Math.abs(x - b.data[0].embedding[i]) < 1e-6))
  })
}
