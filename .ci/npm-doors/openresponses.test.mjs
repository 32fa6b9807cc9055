// The AI SDK's provider for Open Responses, which checks what it gets by the specification's own schemas.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createOpenResponses } from '@ai-sdk/open-responses'
import { generateText, streamText, tool } from 'ai'
import { z } from 'zod'
import { v1 } from './helpers.mjs'

const shallot = createOpenResponses({ name: 'shallot', url: `${v1}/responses`, apiKey: 'the-caller' })
const tools = { weather: tool({ description: 'x', inputSchema: z.object({ city: z.string() }) }) }

test('plain and streamed', async () => {
  const plain = await generateText({ model: shallot('demo/echo'), system: 'be kind', prompt: 'hello onion', maxRetries: 0 })
  assert.deepEqual([plain.text, plain.finishReason], ['hello onion', 'stop'])
  assert.ok(plain.usage.totalTokens > 0)
  let text = ''
  for await (const t of streamText({ model: shallot('demo/echo'), prompt: 'hello onion', maxRetries: 0 }).textStream) text += t
  assert.equal(text, 'hello onion')
})

test('tools, plain and streamed', async () => {
  const plain = await generateText({ model: shallot('demo/tools'), prompt: 'Paris', tools, maxRetries: 0 })
  const streamed = streamText({ model: shallot('demo/tools'), prompt: 'Paris', tools, maxRetries: 0 })
  for (const calls of [plain.toolCalls, await streamed.toolCalls]) assert.deepEqual(calls.map(c => [c.toolName, c.input.city]), [['weather', 'Paris']])
})

test('an image, and more than one turn', async () => {
  const image = { type: 'image', image: 'data:image/png;base64,iVBORw0KGgo=' }
  const r = await generateText({ model: shallot('demo/echo'), maxRetries: 0, messages: [{ role: 'user', content: [{ type: 'text', text: 'see' }, image] },
    { role: 'assistant', content: 'I see.' }, { role: 'user', content: 'and now?' }] })
  assert.equal(r.text, 'and now?')
})
