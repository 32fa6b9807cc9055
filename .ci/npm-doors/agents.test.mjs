// @openai/agents: it speaks the Responses API by default.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Agent, hostedMcpTool, OpenAIConversationsSession, run, setDefaultOpenAIClient, setTracingDisabled, tool } from '@openai/agents'
import OpenAI from 'openai'
import { z } from 'zod'
import { fails, v1 } from './helpers.mjs'

const client = new OpenAI({ baseURL: v1, apiKey: 'the-caller', maxRetries: 0, timeout: 20_000 })
setDefaultOpenAIClient(client)
setTracingDisabled(true)
const weather = tool({ name: 'weather', description: 'x', parameters: z.object({ city: z.string() }), execute: ({ city }) => `${city} is sunny` })

test('plain and streamed', async () => {
  const agent = new Agent({ name: 'a', instructions: 'be kind', model: 'demo/echo' })
  assert.equal((await run(agent, 'hello onion')).finalOutput, 'hello onion')
  const s = await run(agent, 'hello onion', { stream: true })
  for await (const _ of s) { /* to its end */ }
  assert.equal(s.finalOutput, 'hello onion')
})

test('tools, plain and streamed', async () => {
  const agent = new Agent({ name: 'a', model: 'demo/tools', tools: [weather] })
  assert.equal((await run(agent, 'Paris')).finalOutput, 'Paris is sunny')
  const s = await run(agent, 'Paris', { stream: true })
  await s.completed
  assert.equal(s.finalOutput, 'Paris is sunny')
})

test('a handoff', async () => {
  const second = new Agent({ name: 'second', model: 'demo/echo' })
  const first = new Agent({ name: 'first', model: 'demo/tools', handoffs: [second] })
  assert.equal((await run(first, 'over to you')).lastAgent.name, 'second')
})

test('a session in a conversation', async () => {
  const session = new OpenAIConversationsSession({ client })
  const agent = new Agent({ name: 'a', model: 'demo/echo' })
  await run(agent, 'one', { session })
  assert.equal((await run(agent, 'two', { session })).finalOutput, 'two')
  assert.equal((await session.getItems()).length, 4)
  await session.clearSession()
})

test('a tool that waits for a yes: hosted MCP with approval, plain and streamed', async () => {
  const hosted = hostedMcpTool({ serverLabel: 'shallot', serverUrl: 'http://unused.invalid', requireApproval: 'always' })
  const agent = new Agent({ name: 'a', model: 'agent/clerk', tools: [hosted] })
  for (const stream of [false, true]) {
    let r = await run(agent, 'add', { stream })
    if (stream) await r.completed
    assert.deepEqual(r.interruptions.map(i => i.rawItem.name), ['add'])
    r.state.approve(r.interruptions[0])
    r = await run(agent, r.state, { stream })
    if (stream) await r.completed
    assert.deepEqual(r.interruptions, [])
    assert.match(r.finalOutput, /^{"sum":/)
  }
})

test('errors', async () => {
  assert.match(`${await fails(() => run(new Agent({ name: 'a', model: 'demo/fail' }), 'fail 429'))}`, /429/)
})
