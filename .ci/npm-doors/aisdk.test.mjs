// The AI SDK with @ai-sdk/openai, whose default is the Responses API, and @ai-sdk/anthropic.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { embedMany, generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'
import { fails, v1 } from './helpers.mjs'

const openai = createOpenAI({ baseURL: v1, apiKey: 'the-caller' })
const anthropic = createAnthropic({ baseURL: v1, apiKey: 'the-caller' })
const weather = tool({ description: 'x', inputSchema: z.object({ city: z.string() }), execute: ({ city }) => `${city} is sunny` })

for (const [name, provider] of Object.entries({ openai, anthropic })) {
  test(`${name}: plain and streamed`, async () => {
    const r = await generateText({ model: provider('demo/echo'), prompt: 'hello onion', maxRetries: 0 })
    assert.equal(r.text, 'hello onion')
    const s = streamText({ model: provider('demo/echo'), prompt: 'hello onion', maxRetries: 0 })
    let text = ''
    for await (const t of s.textStream) text += t
    assert.equal(text, 'hello onion')
    assert.equal(await s.finishReason, 'stop')
  })

  test(`${name}: a tool over two steps, plain and streamed`, async () => {
    const ask = { model: provider('demo/tools'), prompt: 'Paris', tools: { weather }, stopWhen: stepCountIs(3), maxRetries: 0 }
    assert.equal((await generateText(ask)).text, 'Paris is sunny')
    assert.equal(await streamText(ask).text, 'Paris is sunny')
  })

  test(`${name}: a second turn, as the SDK sends it`, async () => {
    const first = await generateText({ model: provider('demo/echo'), prompt: 'one', maxRetries: 0 })
    const messages = [{ role: 'user', content: 'one' }, ...(first.response?.messages ?? first.responseMessages), { role: 'user', content: 'two' }]
    assert.equal((await generateText({ model: provider('demo/echo'), messages, maxRetries: 0 })).text, 'two')
  })

  test(`${name}: errors and abort`, async () => {
    const e = await fails(() => generateText({ model: provider('demo/fail'), prompt: 'fail 429', maxRetries: 0 }))
    assert.equal(e.statusCode, 429)
    const abort = new AbortController()
    const s = streamText({ model: provider('demo/slow'), prompt: 'w '.repeat(300), abortSignal: abort.signal, maxRetries: 0, onError: () => {} })
    let n = 0
    try {
      for await (const _ of s.textStream) if (++n === 2) abort.abort()
    } catch { /* some versions throw */ }
    assert.ok(n < 20, `${n}`)
  })
}

test('openai: embeddings', async () => {
  const r = await embedMany({ model: openai.embedding('demo/embed'), values: ['a', 'b'] })
  assert.deepEqual(r.embeddings.map(e => e.length), [64, 64])
})
