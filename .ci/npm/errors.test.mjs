// Failures: the client's own classes, what it may retry, and how often the upstream is asked for it.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import OpenAI from 'openai'
import { abandoned, base, client, failure, fails, key, reply, script, seen, toModel, until, user } from './helpers.mjs'

const ask = (model, options, more) => client(options).chat.completions.create({ model, messages: user('hi'), ...more })

const table = [
  // what the upstream says, the class that the client makes of our answer, status, code, requests with 2 client retries
  ['a bad request', failure(400, 'bad_thing', 'temperature is out of range', {}, 'invalid_request_error'), OpenAI.BadRequestError, 400, 'bad_thing', 1],
  ['a conflict', failure(409, null, 'busy'), OpenAI.ConflictError, 409, null, 1],
  ['too long', failure(400, 'context_length_exceeded', 'too many tokens', {}, 'invalid_request_error'), OpenAI.BadRequestError, 400, 'context_length_exceeded', 1],
  ['no such model', failure(404, 'model_not_found', 'no', {}, 'invalid_request_error'), OpenAI.NotFoundError, 404, 'model_not_found', 1],
  ['unprocessable', failure(422, 'odd', 'odd', {}, 'invalid_request_error'), OpenAI.UnprocessableEntityError, 422, 'odd', 1],
  ['our key refused', failure(401, 'invalid_api_key', `wrong key ${key}`), OpenAI.InternalServerError, 502, 'provider_auth', 1],
  ['our account refused', failure(403, null, 'not you'), OpenAI.InternalServerError, 502, 'provider_auth', 1],
  ['no quota', failure(429, 'insufficient_quota', 'pay', {}, 'insufficient_quota'), OpenAI.RateLimitError, 429, 'insufficient_quota', 1],
  ['HTML', { status: 200, headers: { 'content-type': 'text/html' }, body: '<html>login</html>' }, OpenAI.InternalServerError, 502, 'provider_bad_reply', 3],
  ['no choices', { body: '{"id":"x","choices":[]}' }, OpenAI.InternalServerError, 502, 'provider_bad_reply', 3],
  ['a server error', failure(500, null, 'oops'), OpenAI.InternalServerError, 502, 'provider_error', 3],
  ['half a reply', { body: reply('half').slice(0, 50), end: 'cut' }, OpenAI.InternalServerError, 502, 'provider_error', 3],
]
// They wait for the pauses between attempts, so some run at once.
describe('answers of a provider that fail', { concurrency: 8 }, () => {
  for (const [name, answer, kind, status, code, requests] of table) {
    for (const stream of [false, true]) {
      test(`${name}${stream ? ', streamed' : ''}`, async () => {
        const model = await script('error', answer)
        const e = await fails(() => ask(model, { maxRetries: 2 }, stream ? { stream } : {}))
        assert.ok(e instanceof kind, `${e.constructor.name}: ${e.message}`)
        assert.equal(e.status, status)
        assert.equal(e.code, code)
        assert.equal(e.headers.get('x-should-retry'), requests === 1 ? 'false' : null)
        assert.match(e.headers.get('content-type'), /^application\/json/)
        assert.ok(e.requestID)
        assert.equal((await toModel(model)).length, requests)
        assert.ok(!`${e.message} ${JSON.stringify(e.error)} ${[...e.headers]}`.includes(key), 'our key is in the answer')
      })
    }
  }
})

test('a rate limit keeps its headers, and the client waits for it', async () => {
  const limited = failure(429, 'rate_limit_exceeded', 'slow down', { 'retry-after-ms': '200', 'x-ratelimit-remaining-requests': '0', 'x-ratelimit-reset-requests': '1s' }, 'requests')
  const model = await script('limited', limited)
  const e = await fails(() => ask(model))
  assert.ok(e instanceof OpenAI.RateLimitError)
  assert.equal(e.type, 'requests')
  assert.equal(e.code, 'rate_limit_exceeded')
  assert.equal(e.headers.get('retry-after-ms'), '200')
  assert.equal(e.headers.get('x-ratelimit-remaining-requests'), '0')
  assert.equal(e.headers.get('x-ratelimit-reset-requests'), '1s')
  const later = await script('limited', [limited, { body: reply('at last') }])
  const got = await ask(later, { maxRetries: 1 })
  assert.equal(got.choices[0].message.content, 'at last')
  const [a, b] = await toModel(later)
  assert.ok(b.at - a.at >= 190, `${b.at - a.at} ms`)
})

test('retry-after in seconds is kept', async () => {
  const model = await script('seconds', failure(429, null, 'slow down', { 'retry-after': '7' }))
  const e = await fails(() => ask(model))
  assert.equal(e.headers.get('retry-after'), '7')
})

test('the standby answers for a failed primary, and the answer says so', async () => {
  const model = await script('standby', failure(500, null, 'down'), { 'standby-a': failure(503, null, 'down too'), 'standby-b': { body: reply('from b') } })
  const { data, response } = await ask(model, {}, { seed: 5, x_extra: 1 }).withResponse()
  assert.equal(data.choices[0].message.content, 'from b')
  assert.match(response.headers.get('shallot-degraded'), /^model-fallback;model=standby-b/)
  const all = await seen(model)
  assert.equal(all.at(-1).body, JSON.stringify({ model: 'standby-b', messages: user('hi'), seed: 5, x_extra: 1 }))
  assert.equal(new Set(all.map(r => r.headers['x-request-id'])).size, 1)
  assert.ok(all.filter(r => r.model === 'standby-a').length <= 3, 'max-retries bounds the tries of a standby')
  assert.equal(new Set(all.map(r => r.headers['idempotency-key'])).size, all.length, 'each attempt has an upstream key of its own')
})

test('after all standbys the first fault goes out', async () => {
  const model = await script('all-down', failure(400, 'context_length_exceeded', 'too long for the primary', {}, 'invalid_request_error'), { 'standby-a': failure(500, null, 'a is down'), 'standby-b': failure(500, null, 'b is down') })
  const e = await fails(() => ask(model))
  assert.equal(e.status, 400)
  assert.match(e.message, /too long for the primary/)
})

test('an answer that the provider judged is not asked of a standby', async () => {
  const model = await script('judged', failure(400, 'bad', 'bad', {}, 'invalid_request_error'), { 'standby-a': { body: reply('no') } })
  await fails(() => ask(model))
  assert.equal((await seen(model)).length, 1)
})

test('requests that are wrong do not reach the upstream', async () => {
  const model = await script('wrong', { body: reply('no') })
  for (const [body, param, status = 400] of [
    ['{"model":"x"', null], ['[]', null], ['', null], [`{"model":"${model}"}`, 'messages'], ['{"messages":[{"role":"user","content":"x"}]}', 'model'],
    [`{"model":"${model}","messages":[]}`, 'messages'], [`{"model":"${model}","messages":"x"}`, 'messages'], [`{"model":"${model}","messages":[{"role":"user","content":"x"}],"stream":"yes"}`, 'stream'],
  ]) {
    const res = await fetch(`${base}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body })
    const answer = await res.json()
    assert.equal(res.status, status, body)
    assert.equal(answer.error.type, 'invalid_request_error')
    assert.equal(answer.error.param, param, body)
    assert.ok(answer.error.message.length > 10)
  }
  assert.equal((await seen(model)).length, 0)
})

test('paths and methods that do not exist answer as JSON', async () => {
  for (const [method, path, status] of [['GET', '/v1/none', 404], ['GET', '/v1/chat/completions', 405], ['DELETE', '/v1/models', 405]]) {
    const res = await fetch(base + path, { method })
    assert.equal(res.status, status)
    assert.ok((await res.json()).error.message)
  }
  const e = await fails(() => client().images.generate({ model: 'x', prompt: 'y' }))
  assert.ok(e instanceof OpenAI.NotFoundError)
})

test('abort of a waiting call cancels the upstream within a second', async () => {
  const model = await script('abort', { end: 'hang' })
  const abort = new AbortController()
  const running = fails(() => client({ maxRetries: 2 }).chat.completions.create({ model, messages: user('hi') }, { signal: abort.signal }))
  await until('the upstream is asked', async () => (await seen(model)).length)
  const at = Date.now()
  abort.abort()
  assert.ok(await running instanceof OpenAI.APIUserAbortError)
  const r = await abandoned(model)
  assert.ok(r.closed - at < 1000, `${r.closed - at} ms`)
  assert.equal((await seen(model)).length, 1, 'a call that was cancelled is asked of nobody again')
})

test("the client's timeout cancels the upstream", async () => {
  const model = await script('timeout', { end: 'hang' })
  const e = await fails(() => ask(model, { timeout: 400 }))
  assert.ok(e instanceof OpenAI.APIConnectionTimeoutError)
  const at = Date.now()
  const r = await abandoned(model)
  assert.ok(r.closed - at < 1000)
})

test('the deadline of the caller is kept, and told', async () => {
  const model = await script('deadline', { end: 'hang' })
  const begin = Date.now()
  const e = await fails(() => client({ maxRetries: 2 }).chat.completions.create({ model, messages: user('hi') }, { headers: { 'Shallot-Timeout': '700ms' } }))
  assert.equal(e.status, 504)
  assert.equal(e.code, 'deadline_exceeded')
  assert.ok(Date.now() - begin < 3000, `${Date.now() - begin} ms`)
  await abandoned(model)
  assert.equal((await seen(model)).length, 1)
})

test('a first token that does not come: the standby is asked', async () => {
  const model = await script('first-token', { chunks: [': waiting\n\n'], end: 'hang' }, { 'standby-a': { chunks: [JSON.stringify({ id: 'x', object: 'chat.completion.chunk', created: 1, model: 'y', choices: [{ index: 0, delta: { role: 'assistant', content: 'here' }, finish_reason: 'stop' }] })] } })
  const done = await client().chat.completions.stream({ model, messages: user('hi') }).finalChatCompletion()
  assert.equal(done.choices[0].message.content, 'here')
})
