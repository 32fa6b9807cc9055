// Runs of agents, as clients of OpenAI's API stream them and as their own events tell them.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { createOpenAI } from '@ai-sdk/openai'
import { ChatOpenAI } from '@langchain/openai'
import { generateText, streamText } from 'ai'
import OpenAI from 'openai'

const base = process.env.SHALLOT_URL ?? assert.fail('SHALLOT_URL is not set; run .ci/clients')
const other = process.env.SHALLOT_URL_2 ?? base // another gateway of the same installation
const v1 = `${base}/v1`
const headers = { 'Content-Type': 'application/json' }
const post = (path, body) => fetch(base + path, { method: 'POST', headers, body: JSON.stringify(body) })
const pause = ms => new Promise(r => setTimeout(r, ms))
const textOf = async (stream, of) => {
  let text = ''
  for await (const chunk of stream) text += of(chunk) ?? ''
  return text
}
const get = async path => (await fetch(base + path)).json()

// The tools of a server are there when it is connected, and the other gateway when it is ready.
before(async () => {
  while (!(await fetch(`${other}/readyz`).catch(() => ({}))).ok) await pause(100)
  while (!(await get('/v1/tools')).data.some(t => t.function.name === 'everything_echo')) await pause(100)
}, { timeout: 60_000 })

test('openai: a run, plain and streamed, with a tool of a reference server', async () => {
  const client = new OpenAI({ baseURL: v1, apiKey: 'the-caller', maxRetries: 0 })
  const ask = { model: 'agent/echoer', messages: [{ role: 'user', content: 'hello onion' }] }
  assert.equal((await client.chat.completions.create(ask)).choices[0].message.content, 'Echo: hello onion')
  const stream = await client.chat.completions.create({ ...ask, stream: true })
  assert.equal(await textOf(stream, chunk => chunk.choices[0]?.delta.content), 'Echo: hello onion')
  const run = await (await post('/v1/agents/echoer/runs', { input: 'so' })).json()
  const said = (await get(`${run.location}/messages`)).data
  assert.deepEqual(said.map(m => m.role), ['user', 'assistant', 'tool', 'assistant'])
  assert.equal(said[1].tool_calls[0].function.name, 'everything_echo')
})

test('langchain: streamed', async () => {
  const configuration = { baseURL: v1 }
  const model = new ChatOpenAI({ model: 'agent/echoer', apiKey: 'the-caller', maxRetries: 0, configuration })
  assert.equal(await textOf(await model.stream('hello onion'), chunk => chunk.content), 'Echo: hello onion')
})

const ai = createOpenAI({ baseURL: v1, apiKey: 'the-caller' })
for (const [wire, model] of [['chat', ai.chat('agent/echoer')], ['responses', ai.responses('agent/echoer')]]) {
  test(`ai sdk on ${wire}: plain and streamed`, async () => {
    assert.equal((await generateText({ model, prompt: 'hello onion', maxRetries: 0 })).text, 'Echo: hello onion')
    const s = streamText({ model, prompt: 'hello onion', maxRetries: 0 })
    assert.equal(await textOf(s.textStream, t => t), 'Echo: hello onion')
    assert.equal(await s.finishReason, 'stop')
  })
}

// events reads the events of a stream until it ends, or until so many bytes were read: then the connection is cut, and
// what came after the last whole event is lost.
async function events(res, bytes = Infinity) {
  assert.equal(res.status, 200)
  const reader = res.body.getReader()
  let raw = Buffer.alloc(0)
  for (;;) {
    const { done, value } = await reader.read()
    if (done) break
    raw = Buffer.concat([raw, value])
    if (raw.length >= bytes) {
      raw = raw.subarray(0, bytes)
      await reader.cancel()
      break
    }
  }
  return raw.toString().split('\n\n').slice(0, -1).filter(e => e.includes('data: ')).map(e => ({
    id: /^id: (.*)$/m.exec(e)?.[1], type: /^event: (.*)$/m.exec(e)[1], data: JSON.parse(/^data: (.*)$/m.exec(e)[1]),
  }))
}

test('a stream that is cut anywhere and resumed gives each event once', async () => {
  const words = Array.from({ length: 30 }, (_, i) => `word${i}`).join(' ')
  await Promise.all(Array.from({ length: 8 }, async () => {
    const cuts = []
    const cut = () => cuts.push(200 + Math.floor(Math.random() * 900)) && cuts.at(-1)
    const seen = await events(await post('/v1/agents/talker/runs', { input: words, stream: true }), cut())
    const run = seen[0].data.run
    for (let n = 0; seen.at(-1).type !== 'run.ended'; n++) {
      const after = seen.at(-1).id
      const path = `${n % 2 ? base : other}/v1/agents/talker/runs/${run}/events`
      const rest = n % 3 ? fetch(path, { headers: { 'Last-Event-ID': after } }) : fetch(`${path}?after=${after}`)
      seen.push(...await events(await rest, cut()))
    }
    const place = id => id.split('.').map(Number)
    seen.forEach((e, i) => {
      const [[s, p], [t, q]] = [place(seen[Math.max(i - 1, 0)].id), place(e.id)]
      assert.ok(i === 0 || s < t || s === t && p < q, `${seen[i - 1]?.id} before ${e.id}, cut after ${cuts}`)
    })
    assert.equal(seen.filter(e => e.type === 'text.delta').map(e => e.data.text).join(''), words, `cut after ${cuts}`)
    for (const type of ['run.started', 'message', 'run.ended']) {
      assert.equal(seen.filter(e => e.type === type).length, 1, type)
    }
  }))
})

test('a run waits for a yes, is approved, and goes on where it is followed', async () => {
  const res = await post('/v1/agents/clerk/runs', { input: 'pay', background: true })
  assert.equal(res.status, 202)
  const { id, location } = await res.json()
  const all = events(await fetch(`${base}${location}/events`))
  while ((await get(location)).status !== 'waiting') await pause(20)
  const yes = () => post(`/v1/approvals/${id}`, { decision: 'approve' })
  const decided = await Promise.all(Array.from({ length: 20 }, yes))
  assert.deepEqual(decided.map(r => r.status).sort(), [200, ...Array(19).fill(409)])
  const types = (await all).map(e => e.type)
  assert.deepEqual(types.filter(t => t !== 'text.delta'), ['run.started', 'message', 'tool.called', 'approval.wanted',
    'approval.decided', 'tool.ended', 'message', 'run.ended'])
  assert.match((await get(location)).output, /42/)
})
