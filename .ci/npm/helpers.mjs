// What the tests share. The addresses come from ../clients, which starts the processes.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import OpenAI from 'openai'

const need = name => process.env[name] ?? assert.fail(`${name} is not set; run .ci/clients`)
export const base = need('SHALLOT_URL')
export const natsURL = need('SHALLOT_NATS_URL')
const upstream = need('UPSTREAM_URL')
export const key = need('UPSTREAM_KEY')

export const client = (options = {}) =>
  new OpenAI({ baseURL: `${base}/v1`, apiKey: 'the-caller', maxRetries: 0, timeout: 20_000, ...options })

export const unique = name => `t-${name}-${randomUUID()}`

async function control(path, body) {
  const res = await fetch(`${upstream}/control/${path}`, body && { method: 'POST', body: JSON.stringify(body) })
  assert.equal(res.status, 200)
  return res.json()
}

/** Gives a new model of this name its answers, and the standbys theirs; returns the model. */
export async function script(name, answers, standby = {}) {
  const model = unique(name)
  const list = a => (Array.isArray(a) ? a : [a])
  await control('script', { model, answers: list(answers), standby: Object.fromEntries(Object.entries(standby).map(([k, v]) => [k, list(v)])) })
  return model
}

/** The requests that the upstream received for the call of this model, those to its standbys among them. */
export const seen = async model => (await control(`seen?model=${encodeURIComponent(model)}`)).map(r => ({ ...r, body: Buffer.from(r.body, 'base64').toString() }))
export const toModel = async model => (await seen(model)).filter(r => r.model === model)
export const faults = () => control('faults')

export async function until(what, check, ms = 5000) {
  const end = Date.now() + ms
  for (;;) {
    const v = await check()
    if (v) return v
    if (Date.now() > end) assert.fail(`not within ${ms} ms: ${what}`)
    await new Promise(done => setTimeout(done, 20))
  }
}

/** Waits until the upstream has seen a request of this model's call go away, and returns it. */
export const abandoned = model => until('the upstream sees the end', async () => (await seen(model)).find(r => r.closed), 3000)

export const user = text => [{ role: 'user', content: text }]

/** A reply as a provider writes it. */
export const reply = (content, more = {}) => JSON.stringify({
  id: 'chatcmpl-1', object: 'chat.completion', created: 1700000000, model: 'up-1',
  choices: [{ index: 0, message: { role: 'assistant', content, refusal: null }, logprobs: null, finish_reason: 'stop' }],
  usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 }, ...more,
})

export const chunk = (delta, finish = null, index = 0) => JSON.stringify({
  id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1700000000, model: 'up-1',
  choices: [{ index, delta, finish_reason: finish }],
})
export const usageChunk = JSON.stringify({
  id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1700000000, model: 'up-1', choices: [],
  usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
})

/** The chunks of a streamed text, word by word. */
export const words = text => [
  chunk({ role: 'assistant', content: '' }), ...text.split(/(?<= )/).map(w => chunk({ content: w })), chunk({}, 'stop')]

export const failure = (status, code, message = 'it went wrong', headers = {}, type = 'server_error') =>
  ({ status, headers, body: JSON.stringify({ error: { message, type, param: null, code } }) })

/** Runs f, which must fail, and returns the error. */
export async function fails(f) {
  try {
    await f()
  } catch (e) {
    return e
  }
  assert.fail('it did not fail')
}
