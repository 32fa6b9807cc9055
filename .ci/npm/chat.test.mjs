// Calls without a stream: every byte of the request upstream, every byte of the reply back.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { base, client, fails, reply, script, seen, toModel, unique, user } from './helpers.mjs'

test('every field of a request goes up unchanged, and the reply comes back unchanged', async () => {
  const body = reply('Grüße, 世界 🧅\u2028 "quoted"', { system_fingerprint: 'fp_1', service_tier: 'default', vendor: { a: [1, null, 1.50] } })
  const model = await script('fields', { body })
  const request = {
    model, messages: [
      { role: 'developer', content: 'be brief' }, { role: 'system', content: '' },
      { role: 'user', name: 'ann', content: [{ type: 'text', text: 'h\u00e9 \ud83e\uddc5 <&> \u2028' }, { type: 'image_url', image_url: { url: 'data:image/png;base64,iVBORw0KGgo=', detail: 'low' } }] },
      { role: 'assistant', content: null, tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'f', arguments: '{"a": 1}' } }] },
      { role: 'tool', tool_call_id: 'call_1', content: '' }, { role: 'user', content: 'go on' },
    ],
    temperature: 0, top_p: 0, n: 1, presence_penalty: 0, frequency_penalty: -2, seed: -1, stop: ['\n', 'END'], max_tokens: 1,
    max_completion_tokens: 7, logprobs: false, top_logprobs: 0, logit_bias: { 50256: -100 }, user: 'someone', store: false,
    metadata: { team: 'a' }, service_tier: 'auto', reasoning_effort: 'low', verbosity: 'low', parallel_tool_calls: false,
    response_format: { type: 'json_schema', json_schema: { name: 'x', strict: true, schema: { type: 'object', properties: {}, additionalProperties: false } } },
    tools: [{ type: 'function', function: { name: 'f', description: '', parameters: { type: 'object', properties: {} }, strict: false } }],
    tool_choice: 'none', prediction: { type: 'content', content: '' }, modalities: ['text'], prompt_cache_key: 'k', safety_identifier: 's',
    enable_thinking: false, top_k: 0, chat_template_kwargs: { deep: { deeper: [0, -0.0, 1e-7, null] } }, stream: false,
  }
  const { data, response } = await client().chat.completions.create(request).withResponse()
  assert.deepEqual(JSON.parse(JSON.stringify(data)), JSON.parse(body))
  assert.equal(response.headers.get('content-type'), 'application/json')
  const got = await seen(model)
  assert.equal(got.length, 1)
  assert.equal(got[0].body, JSON.stringify(request))
})

test('numbers, order and escapes of a raw body survive, only white space goes; a key twice in an object is refused', async () => {
  const body = `{"choices":[{"finish_reason":"stop","message":{"content":"\\u00e9\\/ 1.0","role":"assistant"},"index":0}],"created":12345678901234567890,"x":1.10,"usage":null}`
  const model = await script('raw', { body })
  const sent = `{"seed":9007199254740993,"zz":0.10,"model":"${model}","big":123456789012345678901234567890,"e":1E5,"messages":[{"content":"\\u00e9 \\/ \\ud83e\\uddc5 a  b","role":"user"}],"extra":{"b":1,"a":2,"c":3}}`
  const spaced = `\n { "seed" : 9007199254740993,\n\t"zz":0.10 , "model":"${model}","big":123456789012345678901234567890, "e":1E5,"messages": [ {"content":"\\u00e9 \\/ \\ud83e\\uddc5 a  b","role":"user"} ] ,"extra":{"b":1,"a":2,"c":3} } \n`
  const res = await fetch(`${base}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: spaced })
  assert.equal(res.status, 200)
  assert.equal(await res.text(), body)
  assert.equal((await seen(model))[0].body, sent)
  const twice = await fetch(`${base}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' },
    body: sent.replace('"c":3', '"b":3') })
  assert.equal(twice.status, 400)
  assert.match((await twice.json()).error.message, /comes twice/)
})

test('n=2 gives two choices', async () => {
  const two = JSON.parse(reply('one'))
  two.choices.push({ index: 1, message: { role: 'assistant', content: 'two', refusal: null }, logprobs: null, finish_reason: 'length' })
  const model = await script('n2', { body: JSON.stringify(two) })
  const got = await client().chat.completions.create({ model, messages: user('hi'), n: 2 })
  assert.deepEqual(got.choices.map(c => [c.message.content, c.finish_reason]), [['one', 'stop'], ['two', 'length']])
})

test('structured output is parsed by the client', async () => {
  const model = await script('parsed', { body: reply('{"answer":42}') })
  const got = await client().chat.completions.parse({ model, messages: user('hi'), response_format: { type: 'json_schema', json_schema: { name: 'a', schema: { type: 'object' } } } })
  assert.equal(got.choices[0].message.content, '{"answer":42}')
})

test('a body of 5 MB with an inline image goes up byte for byte', async () => {
  const model = await script('large', { body: reply('seen') })
  const url = `data:image/png;base64,${Buffer.alloc(3_900_000, 'onion').toString('base64')}`
  const request = { model, messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url } }, { type: 'text', text: 'what is it?' }] }] }
  const got = await client().chat.completions.create(request)
  assert.equal(got.choices[0].message.content, 'seen')
  const [r] = await seen(model)
  assert.ok(r.body.length > 5_000_000)
  assert.ok(r.body === JSON.stringify(request), 'the bytes differ')
})

test('a reply of 2 MB comes back byte for byte', async () => {
  const text = '🧅 layers and layers\n'.repeat(90_000)
  const body = reply(text)
  assert.ok(Buffer.byteLength(body) > 2_000_000)
  const model = await script('big-reply', { body })
  const got = await client().chat.completions.create({ model, messages: user('go') }).asResponse()
  assert.ok(await got.text() === body, 'the bytes differ')
})

test('request id, call id and trace: to the caller and upstream', async () => {
  const model = await script('ids', { body: reply('hi') })
  const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
  const got = await client().chat.completions.create({ model, messages: user('hi') }, { headers: { 'X-Request-Id': 'req-7', traceparent, tracestate: 'a=1', 'X-Private': 'mine', baggage: 'b=1', Cookie: 'c=1' } })
  assert.equal(got._request_id, 'req-7')
  const [r] = await seen(model)
  assert.equal(r.headers['x-request-id'], 'req-7')
  assert.match(r.headers.traceparent, /^00-0af7651916cd43dd8448eb211c80319c-[0-9a-f]{16}-01$/)
  assert.equal(r.headers.tracestate, 'a=1')

  const other = await script('ids', { body: reply('hi') })
  const { data, response } = await client().chat.completions.create({ model: other, messages: user('hi') }).withResponse()
  assert.match(data._request_id, /^[0-9a-f-]{36}$/)
  assert.equal(response.headers.get('shallot-call'), data._request_id)
  assert.equal((await seen(other))[0].headers['x-request-id'], data._request_id)
  assert.match(response.headers.get('shallot-path'), /audit/)
})

test('models: list, and retrieve a name with slashes', async () => {
  const ids = []
  for await (const m of client().models.list()) ids.push(m.id)
  for (const id of ['up/first', 'up/deep/er', 'second', 'demo/echo']) assert.ok(ids.includes(id), `${id} of ${ids}`)
  const m = await client().models.retrieve('up/deep/er')
  assert.deepEqual([m.id, m.object, m.owned_by, m.created], ['up/deep/er', 'model', 'upstream', 1700000001])
  const e = await fails(() => client().models.retrieve('up/none'))
  assert.equal(e.status, 404)
  assert.equal(e.code, 'model_not_found')
})

test('a repeat with the same Idempotency-Key buys once', async () => {
  const model = await script('once', { body: reply('bought'), wait: 300 })
  const ask = (text, key) => client().chat.completions.create({ model, messages: user(text) }, { headers: { 'Idempotency-Key': key } })
  const key = unique('key')
  const got = await Promise.all([ask('a', key), ask('a', key)])
  got.push(await ask('a', key))
  assert.deepEqual(got.map(g => g.choices[0].message.content), ['bought', 'bought', 'bought'])
  assert.equal((await toModel(model)).length, 1)
  const e = await fails(() => ask('another', key))
  assert.equal(e.status, 422)
  assert.equal(e.code, 'idempotency_key_reused')
  await ask('a', unique('key'))
  assert.equal((await toModel(model)).length, 2)
})

test('a client that retries with its key after giving up buys once', async () => {
  const model = await script('impatient', { body: reply('bought'), wait: 1200 })
  const key = unique('key')
  const got = await client({ maxRetries: 4, timeout: 500 }).chat.completions.create({ model, messages: user('a') }, { headers: { 'Idempotency-Key': key } })
  assert.equal(got.choices[0].message.content, 'bought')
  assert.equal((await toModel(model)).length, 1)
})

test('many at once, each its own answer', async () => {
  const model = await script('many', { body: reply('x') })
  const all = await Promise.all(Array.from({ length: 40 }, (_, i) => client().chat.completions.create({ model: 'demo/echo', messages: user(`call ${i} ${model}`) })))
  assert.deepEqual(all.map(a => a.choices[0].message.content), Array.from({ length: 40 }, (_, i) => `call ${i} ${model}`))
})
